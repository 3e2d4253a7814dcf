from collections.abc import Iterator

from schemas.events import TurnEnded, TurnRecovered, TurnStarted
from schemas.state import Turn, unknown_calls
from services.projector.projections.changes import Applied, Change, ChangedRow, Columns, NewRow, given


def turn_changes(applied: Applied) -> Iterator[Change]:
    record, before, after, _ = applied
    match record.data:
        case TurnStarted() as data:
            yield NewRow("turns", (*record.key, data.turn), _started(applied, data))
        case TurnRecovered() as data:
            columns = given(recovered_at=record.time_ms, recovered_by=data.owner)
            yield ChangedRow("turns", (*record.key, data.turn), columns)
        case _:
            pass
    if after.turn is not before.turn and before.turn is not None:
        key = (*record.key, before.turn.turn)
        yield ChangedRow("turns", key, _ended(applied, before.turn) if after.turn is None else _going_on(after.turn))


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


def _going_on(turn: Turn) -> Columns:
    return given(
        status="open" if turn.cancelling is None else "cancelling",
        cancel_cause=turn.cancelling,
        cancelled_at=None if turn.cancelling is None else turn.cancelled_ms,
        steps=turn.steps,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        waited_ms=turn.waited_ms,
    )


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
