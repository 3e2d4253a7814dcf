from collections.abc import Iterator

from schemas.codec import Record
from schemas.events import (
    StepFinished,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
)
from schemas.state import Call
from services.projector.projections.changes import (
    Applied,
    Change,
    ChangedRow,
    Columns,
    NewRow,
    given,
    json_bytes,
    json_models,
)


def tool_call_changes(applied: Applied) -> Iterator[Change]:
    record, before, after, _ = applied
    for name, call in after.calls.items():
        old = before.calls.get(name)
        if old is call:
            continue
        columns = _standing(call)
        if call.settled:
            columns |= given(settled_seq=after.seq, settled_at=record.time_ms, settled_by=call.settled_by)
        key = (*record.key, name)
        if old is None and isinstance(record.data, StepFinished):
            yield NewRow("tool_calls", key, columns | _proposed(record, record.data, call))
        else:
            yield ChangedRow("tool_calls", key, columns | _facts(record, name))


def _standing(call: Call) -> Columns:
    return given(
        status=call.status,
        outcome=call.outcome,
        call_hash=call.call_hash,
        attempts=call.attempt,
        lost_attempts=call.lost_claims,
        claim=call.claim,
        executor=call.executor,
    )


def _proposed(record: Record, data: StepFinished, call: Call) -> Columns:
    proposed = data.calls[call.index]
    return given(
        turn=call.turn,
        step=call.step,
        index=call.index,
        tool=call.tool,
        args=json_bytes(proposed.args),
        malformed=proposed.malformed,
        proposed_seq=call.seq,
        proposed_at=record.time_ms,
    )


def _facts(record: Record, name: str) -> Columns:
    """What only the record knows, of the call that it is about."""
    match record.data:
        case ToolCallApprovalRequested(call=call) as data if call == name:
            return given(
                approval_reason=data.reason,
                approval_requested_at=record.time_ms,
                approval_expires_at=data.expires_at_ms,
            )
        case ToolCallApproved(call=call) as data if call == name:
            return given(
                decision="approved" if data.edited is None else "edited",
                decided_by=data.by,
                decided_at=record.time_ms,
                args=None if data.edited is None else json_bytes(data.edited.args),
            )
        case ToolCallDenied(call=call) as data if call == name:
            return given(decision="denied", decided_by=data.by, decided_at=record.time_ms, decision_reason=data.reason)
        case ToolCallApprovalExpired(call=call) if call == name:
            return given(decision="expired", decided_at=record.time_ms)
        case ToolCallDispatched(call=call) as data if call == name:
            return given(
                effect=data.effect,
                pool=data.pool,
                dispatched_at=record.time_ms,
                deadline_at=data.deadline_ms,
                timeout_ms=data.timeout_ms,
                idempotency_key=data.idempotency_key,
            )
        case ToolCallStarted(call=call) as data if call == name:
            return given(started_at=record.time_ms, lease_seconds=data.lease_seconds)
        case ToolCallFinished(call=call) as data if call == name:
            return given(
                milliseconds=data.milliseconds,
                changes=json_models(data.changes) if data.changes else None,
                artifacts=json_models(data.artifacts) if data.artifacts else None,
            )
        case ToolCallLost(call=call) as data if call == name:
            return given(evidence=data.evidence)
        case ToolCallResolved(call=call) as data if call == name:
            return given(resolution=data.decision, resolved_by=record.actor, resolved_at=record.time_ms, note=data.note)
        case _:
            return {}
