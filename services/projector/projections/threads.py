"""Rows that are written once per thread and batch: its row of `threads`, and its folded state.

They come from the state at the end of the batch, not from single records: a thread with a hundred records in a batch
has one row to write. `columns` declares their columns, in the order of the tuples here.
"""

from schemas.ids import ThreadKey
from schemas.state import FOLD_VERSION, ThreadState, dump_state, is_active
from services.projector.projections.changes import json_bytes


def new_thread_row(key: ThreadKey, partition: int, state: ThreadState) -> tuple[object, ...]:
    lineage = state.lineage
    of_parent: tuple[object, ...] = (None, None, None, None, None, None, 0)
    if lineage is not None:
        of_parent = (lineage.kind, lineage.parent, lineage.seq, lineage.call)
        of_parent += (lineage.plan_version, lineage.task, lineage.depth)
    row = changed_thread_row(key, None, state)
    return (*key, partition, state.created_ms, *of_parent, *row[2:])


def changed_thread_row(key: ThreadKey, before: ThreadState | None, state: ThreadState) -> tuple[object, ...]:
    """Return the changed columns. `before` is the state that the stored row shows; None if there is no row.

    Labels and configuration may be large and seldom change. They are None, and stay as stored, while they are the same
    object.
    """
    statuses = [call.status for call in state.calls.values()]
    return (
        *key,
        state.status,
        state.title or None,
        state.archived,
        state.updated_ms,
        state.seq,
        None if state.turn is None else state.turn.turn,
        state.last_turn,
        state.last_outcome,
        len(state.queue),
        statuses.count("waiting"),
        statuses.count("unknown"),
        state.config_seq,
        state.plan.in_force,
        None if before is not None and before.labels is state.labels else json_bytes(state.labels),
        None if before is not None and before.config is state.config else json_bytes(state.config),
    )


def new_state_row(
    key: ThreadKey, topic: str, partition: int, state: ThreadState, quarantined: str | None
) -> tuple[object, ...]:
    row = changed_state_row(key, state, quarantined)
    return (*key, topic, partition, *row[2:])


def changed_state_row(key: ThreadKey, state: ThreadState, quarantined: str | None) -> tuple[object, ...]:
    """Return the state as it is stored, with the version of the fold: a reader of another version must not load it."""
    return (*key, state.offset, FOLD_VERSION, is_active(state), quarantined, dump_state(state))
