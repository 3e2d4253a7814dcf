"""What a stream brings, parsed as little as its reader needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias, cast

import orjson
from pydantic import JsonValue

JsonObject: TypeAlias = dict[str, JsonValue]

FRAME_BYTES_MAX: Final = 16 * 1_048_576
"""A record is at most 2 MiB; whatever is longer is no stream of ours."""


class StreamError(Exception):
    """The stream is not one of ours."""


@dataclass(frozen=True)
class Fact:
    """A record of the thread, and what the fold made of it."""

    seq: int
    kind: str
    raw: bytes
    """JSON: seq, id, type, time, actor, cause, effect, reason, position, data."""

    @classmethod
    def of(cls, body: JsonObject) -> "Fact":
        """Return the fact that is an entry of a page of events."""
        return cls(cast("int", body["seq"]), str(body["type"]), orjson.dumps(body))

    @cached_property
    def body(self) -> JsonObject:
        return cast("JsonObject", orjson.loads(self.raw))

    @property
    def applied(self) -> bool:
        return self.effect == "applied"

    @property
    def effect(self) -> str:
        """Return what the fold made of the record: applied, duplicate, superseded, rejected or ignored."""
        return str(self.body["effect"])

    @property
    def data(self) -> JsonObject:
        """Return the event's data; empty where the record could not be decoded."""
        data = self.body["data"]
        return data if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Live:
    """A sign of life between two facts: seen only by those who are connected, and never repeated."""

    kind: Literal["delta", "tool_output"]
    raw: bytes

    @cached_property
    def data(self) -> JsonObject:
        return cast("JsonObject", orjson.loads(self.raw))


@dataclass(frozen=True)
class Cut:
    """The server ends the stream; the client goes on after this seq."""

    after: int
    reason: str


StreamItem: TypeAlias = Fact | Live | Cut


class SseParser:
    """Server-sent events as ingest writes them: one line per field, lines end with LF."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[StreamItem]:
        """Yield what the chunk completes. Raises StreamError."""
        *frames, self._rest = (self._rest + chunk).split(b"\n\n") if self._rest else chunk.split(b"\n\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise StreamError(f"an event is longer than {FRAME_BYTES_MAX} bytes")
        for frame in frames:
            item = _item(frame)
            if item is not None:
                yield item


def _item(frame: bytes) -> StreamItem | None:
    seq, kind, data = 0, b"", b""
    for line in frame.split(b"\n"):
        name, _, value = line.partition(b": ")
        match name:
            case b"data":
                data = value
            case b"event":
                kind = value
            case b"id":
                if not value.isdigit():
                    raise StreamError(f"an event's id is {value[:60]!r}, not a seq")
                seq = int(value)
            case _:
                pass  # a comment: the server's heartbeat
    if seq:
        return Fact(seq, kind.decode(), data)
    match kind:
        case b"delta":
            return Live("delta", data)
        case b"tool_output":
            return Live("tool_output", data)
        case b"cut":
            cut = orjson.loads(data)
            return Cut(int(cut["after"]), str(cut["reason"]))
        case _:
            return None
