"""The rows of the view `turns`: one per turn, from its start to its one outcome."""

from schemas.events import TurnEnded, TurnRecovered, TurnStarted
from schemas.state import Turn, unknown_calls
from services.projector.projections.changes import Applied, Change, ChangedRow, Columns, NewRow, given


def turn_changes(applied: Applied) -> list[Change]:
    """Return what the record changes in the rows of turns: a new row, a takeover, progress, or the end."""
    record, before, after, _ = applied
    changes: list[Change] = []
    data = record.data
    if type(data) is TurnStarted:
        changes.append(NewRow("turns", (*record.key, data.turn), _started(applied, data)))
    elif type(data) is TurnRecovered:
        columns = given(recovered_at=record.time_ms, recovered_by=data.owner)
        changes.append(ChangedRow("turns", (*record.key, data.turn), columns))
    old, new = before.turn, after.turn
    # By the state, not by the kind of event: the end of an import and a closing end turns, too.
    if old is not None and new is not old:
        columns = _ended(applied, old) if new is None else _gone_on(old, new)
        if columns:
            changes.append(ChangedRow("turns", (*record.key, old.turn), columns))
    return changes


def _started(applied: Applied, data: TurnStarted) -> Columns:
    record, _, after, _ = applied
    return given(
        status="open",
        inputs=data.inputs,
        model=after.turn.config.model if after.turn is not None else None,
        agent_version=data.agent_version,
        config_seq=data.config,
        base=data.base,
        started_seq=after.seq,
        started_at=record.time_ms,
        steps=0,
        input_tokens=0,
        output_tokens=0,
        waited_ms=0,
    )


def _gone_on(old: Turn, turn: Turn) -> Columns:
    """Return the columns of an open turn that differ from what its row shows."""
    columns: Columns = {}
    if turn.cancelling is not None and old.cancelling is None:
        columns |= {"status": "cancelling", "cancel_cause": turn.cancelling, "cancelled_at": turn.cancelled_ms}
    if turn.steps != old.steps:
        columns |= {"steps": turn.steps, "input_tokens": turn.input_tokens, "output_tokens": turn.output_tokens}
    if turn.waited_ms != old.waited_ms:
        columns["waited_ms"] = turn.waited_ms
    return columns


def _ended(applied: Applied, turn: Turn) -> Columns:
    record, _, after, _ = applied
    return given(
        status="ended",
        outcome=after.last_outcome,
        reason=record.data.reason if isinstance(record.data, TurnEnded) else None,
        ended_seq=after.seq,
        ended_at=record.time_ms,
        unknown_calls=[call.call for call in unknown_calls(after, turn.turn)],
    )
