"""What happened in one run, in the order of virtual time, for whoever has to understand a failing seed."""

import asyncio
from typing import NamedTuple

from schemas.codec import Record
from schemas.ids import ThreadKey
from schemas.thread import Verdict

LINES_MAX = 400
"""Of a printed story: its beginning and, more of it, its end."""
LINES_FIRST = 60
TELLING = (
    "turn", "step", "call", "attempt", "outcome", "mode", "decision", "executor", "owner", "scope", "handed_over",
    "retriable", "discard", "expected_turn", "reason", "evidence", "effect", "last", "plan_version", "task", "status",
    "child", "result",
)  # fmt: skip
"""Fields of events that are shown, where they say something."""
VALUE_CHARACTERS = 60


class Entry(NamedTuple):
    at: float
    who: str
    what: str
    key: ThreadKey | None
    record: Record | None = None
    verdict: Verdict | None = None
    seq: int = 0

    def line(self) -> str:
        what = self.what if self.record is None else _of_record(self.record, self.verdict, self.seq)
        where = "" if self.key is None else f"{self.key.tenant}/{self.key.thread[:8]} "
        return f"{self.at:9.3f} s  {self.who:<18} {where}{what}"


class Story:
    def __init__(self, seed: int, beginning: str) -> None:
        self.seed = seed
        self.beginning = beginning
        self.counts: dict[str, int] = {}
        """What there was of each kind of thing: for whoever asks whether a run did anything at all."""
        self._entries: list[Entry] = []
        self._roots: dict[ThreadKey, ThreadKey] = {}
        """The topmost thread above each that has one."""

    def tell(self, who: str, what: str, key: ThreadKey | None = None) -> None:
        self._entries.append(Entry(asyncio.get_running_loop().time(), who, what, key))

    def tell_record(self, record: Record, verdict: Verdict, seq: int) -> None:
        at = asyncio.get_running_loop().time()
        self._entries.append(Entry(at, record.source, "", record.key, record, verdict, seq))

    def relate(self, key: ThreadKey, parent: ThreadKey) -> None:
        self._roots[key] = self.root(parent)

    def root(self, key: ThreadKey) -> ThreadKey:
        return self._roots.get(key, key)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def text(self, thread: ThreadKey | None = None, lines_max: int | None = None) -> str:
        """All of it, or what concerns one thread with all below the same topmost one, and what happened to processes."""
        root = None if thread is None else self.root(thread)
        lines = [
            entry.line() for entry in self._entries if root is None or entry.key is None or self.root(entry.key) == root
        ]
        if lines_max is not None and len(lines) > lines_max:
            left_out = len(lines) - lines_max
            lines = [*lines[:LINES_FIRST], f"  … {left_out} lines …", *lines[LINES_FIRST - lines_max :]]
        return "\n".join([f"seed {self.seed}: {self.beginning}", *lines]) + "\n"


def _of_record(record: Record, verdict: Verdict | None, seq: int) -> str:
    said = []
    for name in TELLING:
        value = getattr(record.data, name, None)
        if value is not None and value is not False and value != "call":
            said.append(f"{name}={str(value)[:VALUE_CHARACTERS]}")
    for name in ("input", "inputs"):
        value = getattr(record.data, name, None)
        if value:
            said.append(f"{name}={value[:8] if isinstance(value, str) else ','.join(each[:8] for each in value)}")
    judged = (
        "" if verdict is None else verdict.effect if verdict.reason is None else f"{verdict.effect}: {verdict.reason}"
    )
    by = "" if record.actor == f"service:{record.source.split('/')[0]}" else f" by {record.actor}"
    return f"#{seq}@{record.offset} {record.kind} {' '.join(said)}{by} → {judged}"
