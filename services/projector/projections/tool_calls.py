"""The rows of the view `tool_calls`: one per call that a model proposed, from the proposal to its result.

A row has two sources. The state of the call in the fold gives its status, outcome and counters: so a record that moves
several calls at once (a cancel, the end of an import) changes the row of each. The record gives what the fold does not
keep, such as who approved; it says that of the one call that it names.
"""

from collections.abc import Callable, Mapping
from typing import Any

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


def tool_call_changes(applied: Applied) -> list[Change]:
    """Return the change of each call that is another object than before the record. Called only if some call
    changed.
    """
    record, before, after, _ = applied
    data: Any = record.data
    say = _BY_EVENT.get(type(data))
    changes: list[Change] = []
    for name, call in after.calls.items():
        old = before.calls.get(name)
        if old is call:
            continue
        columns = _standing(call) if old is None else _moved(old, call)
        if call.settled:
            columns |= given(settled_seq=after.seq, settled_at=record.time_ms, settled_by=call.settled_by)
        key = (*record.key, name)
        # Only an answer proposes calls; every other record finds the row of its call there.
        if old is None and isinstance(data, StepFinished):
            changes.append(NewRow("tool_calls", key, columns | _proposed(record, data, call)))
            continue
        if say is not None and data.call == name:
            columns |= say(record, data)
        changes.append(ChangedRow("tool_calls", key, columns))
    return changes


def _standing(call: Call) -> Columns:
    """Return the columns that come from the state of the call."""
    return given(
        status=call.status,
        outcome=call.outcome,
        call_hash=call.call_hash,
        attempts=call.attempt,
        lost_attempts=call.lost_claims,
        claim=call.claim,
        executor=call.executor,
    )


def _moved(old: Call, call: Call) -> Columns:
    """Return the columns of `_standing` that differ and are not None: the row shows the others already."""
    columns: Columns = {"status": call.status}
    if call.outcome is not None:
        columns["outcome"] = call.outcome
    if call.call_hash != old.call_hash:
        columns["call_hash"] = call.call_hash
    if call.attempt != old.attempt:
        columns["attempts"] = call.attempt
    if call.lost_claims != old.lost_claims:
        columns["lost_attempts"] = call.lost_claims
    if call.claim is not None and call.claim != old.claim:
        columns["claim"] = call.claim
    if call.executor is not None and call.executor != old.executor:
        columns["executor"] = call.executor
    return columns


def _proposed(record: Record, data: StepFinished, call: Call) -> Columns:
    """Return the columns of a new row that never change, and the arguments as the model wrote them."""
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


# What only the record knows, about the one call that it names


def _request(record: Record, data: ToolCallApprovalRequested) -> Columns:
    return given(
        approval_reason=data.reason,
        approval_requested_at=record.time_ms,
        approval_expires_at=data.expires_at_ms,
    )


def _approval(record: Record, data: ToolCallApproved) -> Columns:
    """Return the decision. Arguments that the approver edited replace those of the model."""
    columns: Columns = {"decision": "approved", "decided_by": data.by, "decided_at": record.time_ms}
    if data.edited is not None:
        columns |= {"decision": "edited", "args": json_bytes(data.edited.args)}
    return columns


def _denial(record: Record, data: ToolCallDenied) -> Columns:
    return {
        "decision": "denied",
        "decided_by": data.by,
        "decided_at": record.time_ms,
        "decision_reason": data.reason,
    }


def _expiry(record: Record, _: ToolCallApprovalExpired) -> Columns:
    return {"decision": "expired", "decided_at": record.time_ms}


def _dispatch(record: Record, data: ToolCallDispatched) -> Columns:
    """Return what the latest dispatch says; it replaces what an earlier one said."""
    return {
        "effect": data.effect,
        "pool": data.pool,
        "dispatched_at": record.time_ms,
        "deadline_at": data.deadline_ms,
        "timeout_ms": data.timeout_ms,
        "idempotency_key": data.idempotency_key,
    }


def _start(record: Record, data: ToolCallStarted) -> Columns:
    return {"started_at": record.time_ms, "lease_seconds": data.lease_seconds}


def _result(_: Record, data: ToolCallFinished) -> Columns:
    """Return what the executor reports. Empty lists of changes and artifacts stay null."""
    columns: Columns = {"milliseconds": data.milliseconds}
    if data.changes:
        columns["changes"] = json_models(data.changes)
    if data.artifacts:
        columns["artifacts"] = json_models(data.artifacts)
    return columns


def _loss(_: Record, data: ToolCallLost) -> Columns:
    return {"evidence": data.evidence}


def _resolution(record: Record, data: ToolCallResolved) -> Columns:
    """Return the answer about an unknown call, and who gave it."""
    return given(resolution=data.decision, resolved_by=record.actor, resolved_at=record.time_ms, note=data.note)


_BY_EVENT: Mapping[type[Any], Callable[[Record, Any], Columns]] = {
    ToolCallApprovalRequested: _request,
    ToolCallApproved: _approval,
    ToolCallDenied: _denial,
    ToolCallApprovalExpired: _expiry,
    ToolCallDispatched: _dispatch,
    ToolCallStarted: _start,
    ToolCallFinished: _result,
    ToolCallLost: _loss,
    ToolCallResolved: _resolution,
}
