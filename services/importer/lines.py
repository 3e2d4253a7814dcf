r"""A session's file as lines, whatever lies in it.

Lines end at `\n` bytes and nowhere else: U+2028, U+0085 and a lone `\r` are text. A line that is no JSON object is
given all the same, without a record, so that it can be counted; one that is too long is read past and never held.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import orjson

from services.chassis.storable import storable_json

LINE_BYTES_MAX = 64 << 20
"""The default for the longest line that is read; a longer one is a bad line."""
CHUNK_BYTES = 1 << 20

Record: TypeAlias = dict[str, Any]
"""A line as it was parsed. What JSON or Postgres cannot carry may still be in it: U+0000, numbers beyond 2^53."""


class Line(NamedTuple):
    number: int
    """From 1, blank ones counted."""
    record: Record | None
    """None where the line is no JSON object."""
    problem: str | None = None
    """Why there is no record: `no JSON`, `no object`, `too long` or `torn` (the last line, without its end)."""


class Source(Protocol):
    """The lines of one file. Each iteration reads it from its beginning; blank lines are left out."""

    def __iter__(self) -> Iterator[Line]: ...


class FileSource:
    def __init__(self, path: Path, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._path = path
        self._line_bytes_max = line_bytes_max

    def __iter__(self) -> Iterator[Line]:
        with self._path.open("rb", buffering=CHUNK_BYTES) as file:
            yield from read_lines(file, self._line_bytes_max)


def read_lines(file: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    number = 0
    while raw := file.readline(line_bytes_max + 1):
        number += 1
        if len(raw) > line_bytes_max and not raw.endswith(b"\n"):
            _read_past(file)
            yield Line(number, None, "too long")
        elif not raw.isspace():
            yield _parse(number, raw)


def _read_past(file: BinaryIO) -> None:
    while (raw := file.readline(CHUNK_BYTES)) and not raw.endswith(b"\n"):
        pass


def _parse(number: int, raw: bytes) -> Line:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _parse_leniently(raw)
    if isinstance(value, dict):
        return Line(number, value)
    if not raw.endswith(b"\n"):
        return Line(number, None, "torn")
    return Line(number, None, "no JSON" if value is None else "no object")


def _parse_leniently(raw: bytes) -> object:
    """What only lone surrogates or bytes that are no UTF-8 keep from being JSON: they are replaced, visibly."""
    try:
        return storable_json(json.loads(raw.decode(errors="replace")))
    except (ValueError, RecursionError):
        return None
