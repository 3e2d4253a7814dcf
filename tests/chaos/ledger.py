"""The world outside: one line per effect that really happened, whatever the log says. Each is synced to the disk."""

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

EffectClass = Literal["pure", "idempotent", "reconcilable", "unsafe"]
CLASSES: tuple[EffectClass, ...] = ("pure", "idempotent", "reconcilable", "unsafe")
PREFIX = "record_"
LOOKUP = "lookup_record"


class Entry(NamedTuple):
    effect: str
    """Class of the tool that wrote it."""
    key: str
    """Idempotency key of the call."""


class Ledger:
    """A file that any process appends to. What is killed midway has written its line or has not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def record(self, entry: Entry, *, once: bool) -> None:
        """`once`: as a downstream that knows idempotency keys, it does nothing for a key that it has seen."""
        with self._locked() as descriptor:
            if once and entry.key in self.by_key():
                return
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            os.fsync(descriptor)

    def by_key(self) -> Mapping[str, int]:
        """How many effects each call had."""
        counted: dict[str, int] = defaultdict(int)
        for line in self._path.read_text().splitlines():
            counted[Entry(*json.loads(line)).key] += 1
        return counted

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)
