"""What an executor may do with the calls of a thread: pure.

A call that is not pure is run only once this executor's own `tool_call.started` has been read back as the claim in
force, and while the lease, counted from the append, is not over. A pure call runs at once; the first end wins.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from schemas.state import Call, ThreadState, Turn

Verdict: TypeAlias = Literal["run", "wait", "never_ran", "stop", "forget"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that this executor has taken up."""

    call: str
    attempt: int
    claim: str
    """Id of its `tool_call.started`."""
    pure: bool
    appended_ms: int
    lease_ms: int


def claimable(state: ThreadState, pool: str) -> list[Call]:
    """Dispatched calls of the pool that nobody has claimed, in order of their index."""
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
    """Running calls of the pool whose claim is another executor's, or that of a former self."""
    if state.status == "importing":
        return []
    return [
        call
        for call in state.calls.values()
        if call.status == "running" and call.pool == pool and call.executor != executor
    ]


def before_running(state: ThreadState, attempt: Attempt, now_ms: int) -> Verdict:
    """For an attempt whose claim has been appended: whether it may run now."""
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
    """For an attempt that runs: whether it is still wanted. One that was taken for lost is, until a later one is
    dispatched: its end is the proof of what it did.
    """
    call = state.calls.get(attempt.call)
    if call is None or call.settled or is_cancelling(state, call):
        return "stop"
    if attempt.pure:
        return "run"
    return "run" if call.claim == attempt.claim and call.attempt == attempt.attempt else "stop"


def is_settled(state: ThreadState, attempt: Attempt) -> bool:
    """For an attempt whose end is in the log: whether nothing in the state speaks of it as under way any more."""
    call = state.calls.get(attempt.call)
    return call is None or call.attempt != attempt.attempt or call.status not in {"dispatched", "running"}


def is_own_claim(call: Call, executor: str) -> bool:
    return call.status == "running" and call.executor == executor


def is_cancelling(state: ThreadState, call: Call) -> bool:
    return state.turn is None or state.turn.turn != call.turn or state.turn.cancelling is not None


def environment(turn: Turn | None) -> dict[str, JsonValue]:
    """What the thread's pinned configuration says of where and how its tools run."""
    if turn is None:
        return {}
    config = turn.config
    return {
        "cwd": config.environment.cwd,
        "profile": config.permission_profile,
        "variables": list(config.environment.variables),
    }
