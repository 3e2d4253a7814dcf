r"""A session's file as lines, whatever lies in it.

Lines end at `\n` bytes and nowhere else: U+2028, U+0085 and a lone `\r` are text. A line that is no JSON object is
given all the same, without a record, so that it can be counted; one that is too long is read past and never held.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

import orjson

from services.chassis.sanitize import sanitize_json

LINE_BYTES_MAX = 64 << 20
"""The default limit on a line that is read; a longer one is a bad line."""
CHUNK_BYTES = 1 << 20
"""How much is read from the file at once."""

Record: TypeAlias = dict[str, Any]
"""A line as it was parsed. What JSON or Postgres cannot carry may still be in it: U+0000, numbers beyond 2^53."""


class Line(NamedTuple):
    """A line of the file, with its record or the reason why it has none."""

    number: int
    """Number of the line from 1, blank lines counted."""
    record: Record | None
    """The parsed object; None where the line is not a JSON object."""
    problem: str | None = None
    """Why there is no record: `no JSON`, `no object`, `too long` or `torn` (the last line, without its end)."""
    size: int = 0
    """Bytes that were parsed, the line's end included."""


class Source(Protocol):
    """The port to the lines of one file. Each iteration reads it from its beginning; blank lines are left out."""

    def __iter__(self) -> Iterator[Line]: ...

    def some(self, wanted: bytearray) -> Iterator[Line]:
        """Yield, in another reading, the lines whose number is a place of `wanted` that holds 1. No other line is
        parsed.
        """
        ...


class FileSource:
    """The lines come from a file, which is opened anew for each reading."""

    def __init__(self, path: Path, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._path = path
        self._line_bytes_max = line_bytes_max

    def __iter__(self) -> Iterator[Line]:
        with self._path.open("rb", buffering=CHUNK_BYTES) as file:
            yield from read_lines(file, self._line_bytes_max)

    def some(self, wanted: bytearray) -> Iterator[Line]:
        with self._path.open("rb", buffering=CHUNK_BYTES) as file:
            yield from read_some(file, wanted, self._line_bytes_max)


def read_lines(file: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    """Yield every line that is not blank. Memory stays below one line, whatever the file's size."""
    number, loads = 0, orjson.loads
    while raw := file.readline(line_bytes_max + 1):
        number += 1
        if len(raw) > line_bytes_max and not raw.endswith(b"\n"):
            _read_past(file)
            yield Line(number, None, "too long")
            continue
        try:
            value = loads(raw)
        except orjson.JSONDecodeError:
            if not raw.isspace():
                yield _parse(number, raw)
            continue
        yield Line(number, value, None, len(raw)) if type(value) is dict else _parse(number, raw)


def read_some(file: BinaryIO, wanted: bytearray, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[Line]:
    """Yield what `Source.some` yields."""
    for number in range(1, len(wanted)):
        raw = file.readline(line_bytes_max + 1)
        if not raw:
            return
        if len(raw) > line_bytes_max and not raw.endswith(b"\n"):
            _read_past(file)
        elif wanted[number]:
            yield _parse(number, raw)


def _read_past(file: BinaryIO) -> None:
    """Skip the rest of a line that is too long."""
    while (raw := file.readline(CHUNK_BYTES)) and not raw.endswith(b"\n"):
        pass


def _parse(number: int, raw: bytes) -> Line:
    """Return the line that raw bytes are, whatever they are. A last line without its end is torn: the tool was writing
    it.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _parse_leniently(raw)
    if type(value) is dict:
        return Line(number, value, None, len(raw))
    if not raw.endswith(b"\n"):
        return Line(number, None, "torn")
    return Line(number, None, "no JSON" if value is None else "no object")


def _parse_leniently(raw: bytes) -> object:
    """Return the value of JSON that only lone surrogates or bytes outside of UTF-8 spoil. They are replaced,
    visibly.
    """
    try:
        return sanitize_json(json.loads(raw.decode(errors="replace")))
    except (ValueError, RecursionError):
        return None


class Wanted:
    """Further readings need these lines. The first of them are kept as they were parsed, up to a number of bytes: most
    files are short enough to be parsed once.
    """

    def __init__(self, held_bytes_max: int) -> None:
        self._bytes_left = held_bytes_max
        self._held: list[Line] = []
        self._others = bytearray()
        """1 at the place of each line that is wanted and not held."""

    def want(self, line: Line) -> None:
        """In the order of their numbers."""
        self._bytes_left -= line.size
        if self._bytes_left >= 0:
            self._held.append(line)
        else:
            self.want_number(line.number)

    def want_number(self, number: int) -> None:
        """Want a line that was passed over when it was read."""
        others = self._others
        if number >= len(others):
            others.extend(bytes(number + 1 - len(others)))
        others[number] = 1

    def lines(self, source: Source) -> Iterator[Line]:
        if not self._others:
            yield from self._held
            return
        held = iter(self._held)
        first = next(held, None)
        for line in source.some(self._others):
            while first is not None and first.number < line.number:
                yield first
                first = next(held, None)
            yield line
        if first is not None:
            yield first
        yield from held
