"""A thread as JSON lines: the format of `threadlog export`, described in docs/verify.md. Pure.

The value of a record is put in as it is on the log. Where a reader that parses it and writes it canonically would not
come to the same bytes, they are there too, in base64: so each record's hash can be checked from the export alone.
"""

import base64
from dataclasses import dataclass, field
from typing import Final

import pydantic_core
from pydantic import JsonValue

from schemas.canonical import canonical_json
from schemas.codec import Record, Unreadable, decode
from schemas.envelope import Headers, format_time
from schemas.errors import UnstorableTextError
from schemas.ids import ThreadKey
from schemas.state import FOLD_VERSION, NOTHING, ThreadState, dump_state
from schemas.thread import Verdict, fold
from schemas.transcript import Transcript, context_hash, transcript_changes
from services.chassis.log.port import Incoming, TopicPartition

FORMAT: Final = "threadlog-export"
VERSION: Final = 1
"""Goes up when a reader of the version before could misunderstand it; members that are new do not count."""


@dataclass(slots=True)
class Exported:
    """Takes the records of the thread's partition in order, and returns the lines of the export."""

    key: ThreadKey
    state: ThreadState = field(default_factory=lambda: NOTHING)
    lines: int = 0
    """Number of records."""
    _transcript: Transcript = field(default_factory=Transcript)

    def head(self, tp: TopicPartition, end: int, cluster_id: str) -> bytes:
        return _line(
            {
                "kind": "header",
                "format": FORMAT,
                "version": VERSION,
                "tenant": self.key.tenant,
                "thread": self.key.thread,
                "cluster": cluster_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "end_offset": end,
                "fold_version": FOLD_VERSION,
            }
        )

    def record(self, incoming: Incoming) -> bytes | None:
        """Return the line of a record, or None if it belongs to another thread."""
        if incoming.key != self.key.to_bytes():
            return None
        self.lines += 1
        record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
        if isinstance(record, Unreadable):
            head: dict[str, JsonValue] = {"kind": "unreadable", "offset": record.offset, "reason": record.reason}
            return _with_value({**head, **_of_log(incoming)}, incoming.value)
        before = self.state
        self.state, verdict = fold(before, record)
        self._transcript.apply(transcript_changes(before, self.state, record, verdict))
        return _with_value({**_folded(record, self.state, verdict), **_of_log(incoming)}, incoming.value)

    def tail(self) -> bytes:
        """Return the last lines, with state and context. An export without them is not whole."""
        state = self.state
        head: dict[str, JsonValue] = {
            "kind": "state",
            "seq": state.seq,
            "chain": state.chain,
            "fold_version": FOLD_VERSION,
        }
        items = self._transcript.context()
        context: dict[str, JsonValue] = {
            "kind": "context",
            "seq": state.seq,
            "hash": context_hash(items),
            "count": len(items),
            "items": [dict(item._asdict()) for item in items],
        }
        return _spliced(head, b"state", dump_state(state)) + _line(context)


def _folded(record: Record, after: ThreadState, verdict: Verdict) -> dict[str, JsonValue]:
    return {
        "kind": "record",
        "seq": after.seq,
        "offset": record.offset,
        "id": record.id,
        "type": record.kind,
        "time": format_time(record.time_ms),
        "actor": record.actor,
        "source": record.source,
        "cause": record.cause,
        "effect": verdict.effect,
        "reason": verdict.reason,
        "data_hash": record.data_hash,
        "chain": after.chain,
    }


def _of_log(incoming: Incoming) -> dict[str, JsonValue]:
    return {"timestamp_ms": incoming.timestamp_ms, "headers": _headers(incoming.headers)}


def _headers(headers: Headers) -> JsonValue:
    """Return pairs of name and value. A value that is not text is written as `{"base64": …}`."""
    return [[name, _text(raw)] for name, raw in headers]


def _text(raw: bytes) -> JsonValue:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _with_value(head: dict[str, JsonValue], value: bytes | None) -> bytes:
    if value is None:
        return _line({**head, "value_base64": None, "data": None})
    try:
        parsed = pydantic_core.from_json(value, allow_inf_nan=False)
        is_one_line = b"\n" not in value and b"\r" not in value
    except ValueError:
        parsed, is_one_line = None, False
    if not is_one_line or not _is_canonical(parsed, value):
        head["value_base64"] = base64.b64encode(value).decode()
    return _spliced(head, b"data", value if is_one_line else pydantic_core.to_json(parsed))


def _is_canonical(parsed: JsonValue, value: bytes) -> bool:
    try:
        return canonical_json(parsed) == value
    except UnstorableTextError:
        return False


def _spliced(head: dict[str, JsonValue], name: bytes, value: bytes) -> bytes:
    return b"".join((pydantic_core.to_json(head)[:-1], b',"', name, b'":', value, b"}\n"))


def _line(value: dict[str, JsonValue]) -> bytes:
    return pydantic_core.to_json(value) + b"\n"
