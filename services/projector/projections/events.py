import pydantic_core

from schemas.codec import Record
from schemas.state import ThreadState
from schemas.thread import Verdict
from services.projector.projections.changes import Applied

COLUMNS = (
    *("tenant", "thread", "seq", "partition", "offset", "id", "type", "time", "actor", "source", "cause"),
    *("data_hash", "chain", "effect", "reason", "data"),
)


def event_row(applied: Applied, partition: int, value: bytes | None) -> tuple[object, ...]:
    record, _, after, verdict = applied
    return (
        record.key.tenant,
        record.key.thread,
        after.seq,
        partition,
        record.offset,
        record.id,
        record.kind,
        record.time_ms,
        record.actor,
        record.source,
        record.cause,
        record.data_hash,
        after.chain,
        verdict.effect,
        verdict.reason,
        # The value's own bytes: they are JSON already.
        value if record.problem is None else _of_unknown_type(record, value),
    )


def bare_event_row(record: Record, after: ThreadState, verdict: Verdict, partition: int) -> tuple[object, ...]:
    """One that no database refuses: without data, and with U+0000 replaced, so that it shows."""
    row = event_row(Applied(record, after, after, verdict), partition, None)
    return (*[item.replace("\x00", "\u2400") if isinstance(item, str) else item for item in row[:-1]], None)


def _of_unknown_type(record: Record, value: bytes | None) -> bytes | None:
    """What is not known is shown where it is JSON that a database can hold."""
    if value is None or record.problem is None or record.problem.understood or b"\\u0000" in value:
        return None
    try:
        pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError:
        return None
    return value
