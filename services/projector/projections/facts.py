"""What can be counted of a record without folding: the column `facts` of `events`, and of the effects on their topic.

`schemas.other_topics.effects.Facts` describes each key. Only records that took effect have facts, with one exception:
the tokens of an answer that lost its race were paid for, too.

Whoever counts sees one record at a time, and no state. So facts that describe a level, such as calls that wait, are
differences: +1 when a call begins to wait, -1 when it stops. Their sum over a thread's records is the level in the
fold.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from schemas.events import (
    ContextCompacted,
    Event,
    InputSubmitted,
    StepFailed,
    StepFinished,
    StepStarted,
    ToolCallApprovalExpired,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
    TurnStarted,
    Usage,
)
from schemas.other_topics.effects import NAME_CHARACTERS_MAX
from schemas.state import Call, ThreadState, Turn
from services.projector.projections.changes import Applied
from services.projector.projections.usage import model_of

Facts: TypeAlias = dict[str, int | str]


def facts(applied: Applied) -> Facts | None:
    """Return the facts of a record; None if it has none."""
    record, before, after, verdict = applied
    data = record.data
    if verdict.effect != "applied":
        return _paid(before, data) if verdict.effect == "superseded" else None
    say = _BY_EVENT.get(type(data)) if data is not None else None
    said: Facts = say(applied, data) if say is not None else {}
    if before.turn is not None and after.turn is None:
        _tell_end(said, applied, before.turn)
    if after.calls is not before.calls:
        _tell_standing(said, before.calls, after.calls)
    return said or None


def _paid(before: ThreadState, data: Event | None) -> Facts | None:
    """Return the tokens of an answer or a summary that lost its race: they were paid for."""
    match data:
        case StepFinished():
            return {"turn": data.turn, "step": data.step} | _usage(before, data.turn, data.usage)
        case ContextCompacted():
            return _usage(before, None if before.turn is None else before.turn.turn, data.usage)
        case _:
            return None


def _name(text: str) -> str:
    """Return the name bounded in length, without U+0000: it becomes part of rows and counters of others."""
    return text.replace("\x00", "\u2400")[:NAME_CHARACTERS_MAX]


# By event


def _of_input(_: Applied, __: InputSubmitted) -> Facts:
    return {"inputs": 1}


def _of_turn(_: Applied, data: TurnStarted | TurnRecovered | TurnCancelRequested) -> Facts:
    return {"turn": data.turn}


def _of_end(_: Applied, data: TurnEnded) -> Facts:
    return {"turn": data.turn, "reason": _name(data.reason)} if data.reason else {"turn": data.turn}


def _of_start(_: Applied, data: StepStarted) -> Facts:
    return {"turn": data.turn, "step": data.step, "model": _name(data.model)}


def _of_failure(_: Applied, data: StepFailed) -> Facts:
    return {"turn": data.turn, "step": data.step, "error_kind": _name(data.error.kind)}


def _of_answer(applied: Applied, data: StepFinished) -> Facts:
    turn = applied.before.turn
    step = None if turn is None else turn.step
    took: Facts = {} if step is None else {"step_ms": max(0, applied.record.time_ms - step.started_ms)}
    return {"turn": data.turn, "step": data.step} | took | _usage(applied.before, data.turn, data.usage)


def _of_compaction(applied: Applied, data: ContextCompacted) -> Facts:
    turn = applied.before.turn
    return _usage(applied.before, None if turn is None else turn.turn, data.usage)


def _of_call(
    applied: Applied, data: ToolCallApprovalRequested | ToolCallDispatched | ToolCallStarted | ToolCallLost
) -> Facts:
    return _which_call(applied, data.call)


def _of_result(applied: Applied, data: ToolCallFinished) -> Facts:
    """Return the call and the time of its tool. A call that never started has no such time."""
    said = _which_call(applied, data.call)
    if data.outcome != "not_started":
        said["tool_ms"] = data.milliseconds
    return said


def _of_approval(applied: Applied, data: ToolCallApproved) -> Facts:
    return _which_call(applied, data.call) | {"decision": "approved" if data.edited is None else "edited"}


def _of_denial(applied: Applied, data: ToolCallDenied) -> Facts:
    return _which_call(applied, data.call) | {"decision": "denied"}


def _of_expiry(applied: Applied, data: ToolCallApprovalExpired) -> Facts:
    return _which_call(applied, data.call) | {"decision": "expired"}


def _of_resolution(applied: Applied, data: ToolCallResolved) -> Facts:
    return _which_call(applied, data.call) | {"decision": data.decision}


_BY_EVENT: Mapping[type[Event], Callable[[Applied, Any], Facts]] = {
    InputSubmitted: _of_input,
    TurnStarted: _of_turn,
    TurnRecovered: _of_turn,
    TurnCancelRequested: _of_turn,
    TurnEnded: _of_end,
    StepStarted: _of_start,
    StepFailed: _of_failure,
    StepFinished: _of_answer,
    ContextCompacted: _of_compaction,
    ToolCallApprovalRequested: _of_call,
    ToolCallDispatched: _of_call,
    ToolCallStarted: _of_call,
    ToolCallLost: _of_call,
    ToolCallFinished: _of_result,
    ToolCallApproved: _of_approval,
    ToolCallDenied: _of_denial,
    ToolCallApprovalExpired: _of_expiry,
    ToolCallResolved: _of_resolution,
}


# Parts


def _which_call(applied: Applied, name: str) -> Facts:
    """Return the call with its tool, and its outcome once it has one."""
    said: Facts = {"call": name}
    before, after = applied.before.calls.get(name), applied.after.calls.get(name)
    if before is not None:
        said["tool"] = _name(before.tool)
    if after is not None and after.outcome is not None:
        said["outcome"] = after.outcome
    return said


def _usage(before: ThreadState, turn: int | None, usage: Usage) -> Facts:
    """Return the model and its tokens. Cached and reasoning tokens are left out if there are none."""
    said: Facts = {
        "model": _name(model_of(before, turn)),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        said["cached_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        said["reasoning_tokens"] = usage.reasoning_tokens
    return said


def _tell_end(said: Facts, applied: Applied, turn: Turn) -> None:
    """Add the facts of a turn's end: any record that ends the turn has them, the end of an import included."""
    ended_ms = applied.record.time_ms
    waited_ms = turn.waited_ms
    if turn.waiting_since_ms is not None:
        waited_ms += max(0, ended_ms - turn.waiting_since_ms)
    said["turn"] = turn.turn
    said["turn_ms"] = turn_ms = max(0, ended_ms - turn.started_ms)
    if waited_ms:
        said["waited_ms"] = min(waited_ms, turn_ms)
    said["outcome"] = applied.after.last_outcome or "interrupted"


def _tell_standing(said: Facts, before: Mapping[str, Call], after: Mapping[str, Call]) -> None:
    """Add by how many the waiting and the unknown calls changed. A zero is left out."""
    waiting = unknown = 0
    for calls, sign in ((before, -1), (after, 1)):
        for call in calls.values():
            if call.status == "waiting":
                waiting += sign
            elif call.status == "unknown":
                unknown += sign
    if waiting:
        said["waiting"] = waiting
    if unknown:
        said["unknown"] = unknown
