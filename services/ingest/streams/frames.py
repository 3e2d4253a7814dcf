"""What a client sees of a record, as JSON and as a server-sent event. Pure.

The data of a record is inserted as it is: it is neither decoded nor encoded on its way to a client.
"""

from json.encoder import encode_basestring_ascii as quoted
from typing import NamedTuple

import pydantic_core

from schemas.codec import Record
from schemas.envelope import format_time
from schemas.thread import Effect, Verdict

HEARTBEAT = b":\n\n"
"""A comment, which clients of server-sent events ignore."""

_ESCAPED_LINES = bytes.maketrans(b"\r\n", b"  ")
"""Raw line breaks become spaces. In valid JSON they only stand between tokens, where a space means the same."""


class FoldedRecord(NamedTuple):
    """A record of a thread, and what the fold decided about it."""

    seq: int
    id: str
    kind: str
    time_ms: int
    actor: str
    cause: str | None
    effect: Effect
    reason: str | None
    partition: int
    offset: int
    data: bytes | None
    """The data as JSON; None if the record could not be decoded."""


class Frame(NamedTuple):
    """One server-sent event, built once for all watches of the thread."""

    sse: bytes
    seq: int = 0
    """The record's number; 0 for progress, which has no place in the sequence and cannot be read again."""
    record: FoldedRecord | None = None
    """The record; None for progress."""


def folded_record(record: Record, value: bytes | None, seq: int, verdict: Verdict, partition: int) -> FoldedRecord:
    """Return the record as clients see it, with its data if that can be shown."""
    return FoldedRecord(
        seq,
        record.id,
        record.kind,
        record.time_ms,
        record.actor,
        record.cause,
        verdict.effect,
        verdict.reason,
        partition,
        record.offset,
        value if record.data is not None or _is_kept(record, value) else None,
    )


def fact_frame(record: FoldedRecord) -> Frame:
    """Return the frame of a record. A kind that would break the event's lines is shown as `unreadable`."""
    kind = record.kind if record.kind.isprintable() and record.kind else "unreadable"
    head = f"id: {record.seq}\nevent: {kind}\ndata: {_head(record)}"
    return Frame(b"".join((head.encode(), _one_line(record.data), b"}\n\n")), record.seq, record)


def fact_json(record: FoldedRecord) -> bytes:
    """Return the record as a member of a page of events."""
    return b"".join((_head(record).encode(), _one_line(record.data), b"}"))


def progress_frame(kind: str, value: bytes) -> Frame:
    """Return the frame of progress, such as a piece of the model's answer."""
    return Frame(b"".join((f"event: {kind}\ndata: ".encode(), _one_line(value), b"\n\n")))


def cut_frame(after: int, reason: str) -> bytes:
    """Return the last event of a stream that the server ends: it says from where to continue."""
    return f'event: cut\ndata: {{"after":{after},"reason":{quoted(reason)}}}\n\n'.encode()


def _head(r: FoldedRecord) -> str:
    cause = "null" if r.cause is None else quoted(r.cause)
    reason = "null" if r.reason is None else quoted(r.reason)
    return (
        f'{{"seq":{r.seq},"id":"{r.id}","type":{quoted(r.kind)},"time":"{format_time(r.time_ms)}"'
        f',"actor":{quoted(r.actor)},"cause":{cause},"effect":"{r.effect}","reason":{reason}'
        f',"position":{{"partition":{r.partition},"offset":{r.offset}}},"data":'
    )


def _one_line(value: bytes | None) -> bytes:
    if value is None:
        return b"null"
    if b"\n" in value or b"\r" in value:
        return value.translate(_ESCAPED_LINES)
    return value


def _is_kept(record: Record, value: bytes | None) -> bool:
    """Return whether data that this version does not understand can be shown all the same, by the rule of the `events`
    view.
    """
    if value is None or record.problem is None or record.problem.understood or b"\\u0000" in value:
        return False
    try:
        pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError:
        return False
    return True
