"""The rows of the view `events`: one per record of the log, applied or not.

A row contains the whole value of its record. So a record that cannot be stored is refused by a row of its own, in
whatever batch it is.
"""

import orjson
import pydantic_core

from schemas.codec import Record
from services.projector.projections.changes import Applied
from services.projector.projections.facts import facts

COLUMNS = (
    *("tenant", "thread", "seq", "partition", "offset", "id", "type", "time", "actor", "source", "cause"),
    *("data_hash", "chain", "effect", "reason", "data", "facts"),
)


def event_row(applied: Applied, partition: int, value: bytes | None) -> tuple[object, ...]:
    """Return the row in the order of `COLUMNS`. `value` is that of the record, as it is on the log."""
    counted = facts(applied)
    # The value's own bytes: they are JSON already.
    data = value if applied.record.problem is None else _of_unknown_type(applied.record, value)
    return (*_standing(applied, partition), data, None if counted is None else orjson.dumps(counted))


def bare_event_row(applied: Applied, partition: int) -> tuple[object, ...]:
    """Return a row that no database refuses: without data, and with U+0000 replaced by its picture.

    Records of a quarantined thread have such rows, so that seq has no gap.
    """
    try:
        counted = facts(applied)
    except Exception:  # noqa: BLE001  # it is bare because something of it failed; this must not
        counted = None
    standing = [
        item.replace("\x00", "\u2400") if isinstance(item, str) else item for item in _standing(applied, partition)
    ]
    return (*standing, None, None if counted is None else orjson.dumps(counted))


def _standing(applied: Applied, partition: int) -> tuple[object, ...]:
    """Return the columns before `data`, which every row has."""
    record, _, after, verdict = applied
    return (
        *record.key,
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
        *verdict,
    )


def _of_unknown_type(record: Record, value: bytes | None) -> bytes | None:
    """Return the value of a record of an unknown type if it is JSON that the database can store; None otherwise.

    A newer release may have written it. Postgres stores no U+0000 in jsonb, and no NaN or infinity.
    """
    if value is None or record.problem is None or record.problem.understood or b"\\u0000" in value:
        return None
    try:
        pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError:
        return None
    return value
