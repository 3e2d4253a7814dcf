"""Why a thread that has been quiet for a while should not be. Pure: it judges by the folded state and the time.

A thread may be quiet for good reasons: it waits for a person, a client's tool, an agreed time, or a model or tool that
still has time. In every other state some service has to act, and this module says which one. If one of several calls
may still be waited for, the thread counts as waiting.
"""

from typing import NamedTuple

from schemas.state import Call, Step, ThreadState, Turn, unsettled_calls

ASK_RUNTIME = (
    "Look whether a runtime owns the thread's partition and what it logged about this thread, and restart it if it does"
    " not say why."
)
"""What to do if the runtime should act."""
ASK_EXECUTOR = (
    "Look whether a tool-executor of this pool runs and has free places (threadlog_executor_waiting_threads), and start"
    " one if not."
)
"""What to do if a tool-executor should claim a call."""
ASK_BOTH = "Look what the executor and the runtime of the thread's partition logged about this call, and restart them."
"""What to do if a call should have ended."""


class Quiet(NamedTuple):
    """How long nothing may happen, in milliseconds."""

    thread_ms: int
    """Limit of a thread for which some service should act."""
    step_ms: int
    """Limit of an open step. It must be longer than the time that the runtime gives a model."""


class Stall(NamedTuple):
    """Why a thread counts as stuck, and what to do now."""

    detail: str
    what_to_do: str


def stall(state: ThreadState, now_ms: int, quiet: Quiet) -> Stall | None:
    """Return why the thread is stuck; None if it waits for good reasons, or has shown something lately."""
    if state.status == "importing" or now_ms - state.updated_ms < quiet.thread_ms:
        return None
    turn = state.turn
    if turn is None:
        return _without_turn(state)
    if turn.cancelling is not None:
        return _cancelling(state, turn)
    if turn.step is not None:
        return _in_step(turn, turn.step, now_ms, quiet)
    calls = unsettled_calls(state, turn.turn)
    if not calls:
        return Stall(f"Turn {turn.turn} has finished {turn.steps} steps, and nothing starts the next.", ASK_RUNTIME)
    return _in_calls(turn, calls, now_ms, quiet)


def _without_turn(state: ThreadState) -> Stall | None:
    """Judge a thread without a turn: only a closing one, and one with inputs that may start a turn, must move on."""
    if state.status == "closing":
        return Stall("It is closing, and nothing closes it.", ASK_RUNTIME)
    free = sum(not item.held for item in state.queue)
    if state.status == "active" and free:
        return Stall(f"Inputs wait ({free}), and no turn is started.", ASK_RUNTIME)
    return None


def _cancelling(state: ThreadState, turn: Turn) -> Stall:
    """Judge a cancelled turn: a running call must end first, then the runtime ends the turn."""
    running = [call.call for call in unsettled_calls(state, turn.turn) if call.status == "running"]
    if running:
        return Stall(f"Turn {turn.turn} is cancelled, and {', '.join(running)} has not ended.", ASK_BOTH)
    return Stall(f"Turn {turn.turn} is cancelled, and nothing ends it.", ASK_RUNTIME)


def _in_step(turn: Turn, step: Step, now_ms: int, quiet: Quiet) -> Stall | None:
    """Judge a turn whose last step is open or has failed."""
    name = f"Step {turn.turn}.{step.step}"
    if step.status == "open":
        if now_ms - step.started_ms < quiet.step_ms:
            return None
        return Stall(f"{name} asked its model, {step.owner} should answer, and no answer or failure came.", ASK_RUNTIME)
    if step.retry_at_ms is not None and now_ms - step.retry_at_ms < quiet.thread_ms:
        return None
    return Stall(f"{name} failed ({step.error}), and is neither tried again nor given up.", ASK_RUNTIME)


def _in_calls(turn: Turn, calls: list[Call], now_ms: int, quiet: Quiet) -> Stall | None:
    """Judge a turn whose step is finished and whose calls are not settled."""
    for call in calls:
        if call.status == "dispatched":
            return Stall(f"Call {call.call} of {call.tool} waits in pool {call.pool}; nobody claims it.", ASK_EXECUTOR)
    if any(_may_wait(turn, call, now_ms, quiet) for call in calls):
        return None
    first = calls[0]
    named = f"Call {first.call} of {first.tool}"
    match first.status:
        case "running":
            return Stall(f"{named} has had its time, and {first.executor} does not say how it ended.", ASK_BOTH)
        case "waiting":
            return Stall(f"The approval of call {first.call} has expired, and nobody says so.", ASK_RUNTIME)
        case _:
            return Stall(f"{named} is {first.status}, and nothing comes of it.", ASK_RUNTIME)


def _may_wait(turn: Turn, call: Call, now_ms: int, quiet: Quiet) -> bool:
    """Return whether the call may still be waited for."""
    match call.status:
        case "unknown":
            return turn.config.on_unknown != "end"
        case "waiting":
            return call.expires_at_ms is None or now_ms - call.expires_at_ms < quiet.thread_ms
        case "running":
            return now_ms - max(call.deadline_ms, call.claimed_ms + call.timeout_ms) < quiet.thread_ms
        case _:
            return False
