"""What an executor may do with the calls of a thread: pure.

Claim before effect. A call with effects runs only after this executor's own `tool_call.started` has been read back as
the claim in force, and only while its lease is not over. The lease is counted from before the append: other executors
start counting when they see the claim, which is later, so none of them declares it lost before this one gives it up.

A pure call needs no claim. It runs at once, perhaps on several executors, and the first end counts.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from schemas.state import Call, ThreadState, Turn

Verdict: TypeAlias = Literal["run", "wait", "never_ran", "stop", "forget"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that this executor has taken up, with what it needs to judge it later."""

    call: str
    attempt: int
    claim: str
    """Id of its `tool_call.started`. It is derived, so a repeated append is the same claim."""
    pure: bool
    appended_ms: int
    """When the claim was appended first, by this process's clock."""
    lease_ms: int


def claimable(state: ThreadState, pool: str) -> list[Call]:
    """Return the dispatched calls of the pool that nobody has claimed, in the order in which the model made them."""
    turn = state.turn
    if turn is None or turn.cancelling is not None or state.status == "importing":
        return []
    calls = [
        call
        for call in state.calls.values()
        if call.status == "dispatched" and call.pool == pool and call.turn == turn.turn
    ]
    return sorted(calls, key=lambda call: call.index)


def claimed_by_others(state: ThreadState, pool: str, executor: str) -> list[Call]:
    """Return the running calls of the pool that another executor has claimed, or an earlier process of its name."""
    if state.status == "importing":
        return []
    return [
        call
        for call in state.calls.values()
        if call.status == "running" and call.pool == pool and call.executor != executor
    ]


def before_running(state: ThreadState, attempt: Attempt, now_ms: int) -> Verdict:
    """Decide about an attempt whose claim has been appended and not acted on yet.

    `wait`: the claim has not been read back. `run`: it is in force. `never_ran`: it is in force and too old, or the
    turn is over, so its end must be recorded. `forget`: another claim won, or the call is settled.
    """
    call = state.calls.get(attempt.call)
    if call is None or call.settled or call.attempt != attempt.attempt:
        return "forget"
    if call.status == "dispatched":
        return "wait"
    if call.status != "running" or call.claim != attempt.claim:
        return "forget"
    if now_ms >= attempt.appended_ms + attempt.lease_ms or is_cancelling(state, call):
        return "never_ran"
    return "run"


def while_running(state: ThreadState, attempt: Attempt) -> Verdict:
    """Decide whether an attempt that runs should run on.

    An attempt that was declared lost runs on until a later one is dispatched: its end proves what it did, and so
    settles the call without a person.
    """
    call = state.calls.get(attempt.call)
    if call is None or call.settled or is_cancelling(state, call):
        return "stop"
    if attempt.pure:
        return "run"
    return "run" if call.claim == attempt.claim and call.attempt == attempt.attempt else "stop"


def is_settled(state: ThreadState, attempt: Attempt) -> bool:
    """Return whether the state has caught up with an attempt whose end is in the log, so that it can be forgotten."""
    call = state.calls.get(attempt.call)
    return call is None or call.attempt != attempt.attempt or call.status not in {"dispatched", "running"}


def is_own_claim(call: Call, executor: str) -> bool:
    return call.status == "running" and call.executor == executor


def is_cancelling(state: ThreadState, call: Call) -> bool:
    return state.turn is None or state.turn.turn != call.turn or state.turn.cancelling is not None


def environment(turn: Turn | None) -> dict[str, JsonValue]:
    """Return what the configuration of the turn says about where and how its tools run."""
    if turn is None:
        return {}
    config = turn.config
    return {
        "cwd": config.environment.cwd,
        "profile": config.permission_profile,
        "variables": list(config.environment.variables),
    }
