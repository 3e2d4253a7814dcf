"""The rows of the view `steps`: one per model call, whatever its number of attempts.

The row shows the latest attempt; the answer may be of an earlier one (`finished_attempt`). An error stays in the row
when a later attempt succeeds.
"""

from schemas.events import StepFailed, StepFinished, StepStarted
from services.projector.projections.changes import Applied, Change, ChangedRow, Columns, NewRow, given


def step_changes(applied: Applied) -> list[Change]:
    """Return what the record changes in the rows of steps. Called only if the turn in the state changed."""
    record, before, after, _ = applied
    data = record.data
    if type(data) is StepStarted:
        return [_started(applied, data)]
    if type(data) is StepFinished:
        return [ChangedRow("steps", (*record.key, data.turn, data.step), _finished(applied, data))]
    if type(data) is StepFailed:
        columns = given(
            status="failed",
            failures=after.turn.step.failures if after.turn is not None and after.turn.step is not None else None,
            error_kind=data.error.kind,
            error=data.error.message,
            retriable=data.retriable,
            retry_at=data.retry_at_ms,
        )
        return [ChangedRow("steps", (*record.key, data.turn, data.step), columns)]
    # A turn can end while its model call is open: nobody will record an end of that step.
    turn = before.turn
    if after.turn is None and turn is not None and turn.step is not None and turn.step.status == "open":
        return [ChangedRow("steps", (*record.key, turn.turn, turn.step.step), {"status": "dropped"})]
    return []


def _started(applied: Applied, data: StepStarted) -> Change:
    record, _, after, _ = applied
    key = (*record.key, data.turn, data.step)
    columns: Columns = {
        "status": "open",
        "attempts": data.attempt,
        "model": data.model,
        "owner": data.owner,
        "context_seq": data.context.confirmed_seq,
        "context_items": data.context.items,
        "context_hash": data.context.hash,
        "tools_hash": data.tools_hash,
        "attempt_at": record.time_ms,
    }
    if data.attempt > 1:
        return ChangedRow("steps", key, columns)
    columns |= {"inputs": data.inputs, "failures": 0, "started_seq": after.seq, "started_at": record.time_ms}
    return NewRow("steps", key, columns)


def _finished(applied: Applied, data: StepFinished) -> Columns:
    return given(
        status="finished",
        finished_seq=applied.after.seq,
        finished_at=applied.record.time_ms,
        finished_attempt=data.attempt,
        stop_reason=data.stop_reason,
        response_id=data.response_id,
        calls=len(data.calls),
        input_tokens=data.usage.input_tokens,
        output_tokens=data.usage.output_tokens,
        cached_tokens=data.usage.cached_tokens,
        reasoning_tokens=data.usage.reasoning_tokens,
    )
