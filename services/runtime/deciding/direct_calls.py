"""Turns that run one call at the request of a person or a backend, and ask no model. Pure.

Such a turn has one step, and the call itself is the answer of that step; after that the call is treated like any other.
Whoever requested it has approved it thereby. Every event is derived from the turn alone, so any owner can continue it
without recovering anything: there is no model call that could have been lost.
"""

from collections.abc import Sequence

from schemas.events import ProposedCall, RequestedCall, StepFinished
from schemas.state import Call, QueuedInput, Step, Turn
from services.runtime.deciding.calls import end_turn
from services.runtime.deciding.decisions import Append, World

MODEL = "requested"
"""Name that the step records in place of a model's, and of a reason to stop."""


def taken_together(free: Sequence[QueuedInput]) -> Sequence[QueuedInput]:
    """Return the inputs that the next turn takes. A requested call has a turn to itself; messages share one."""
    first_call = next((place for place, item in enumerate(free) if item.call is not None), len(free))
    return free[: max(1, first_call)]


def answer(turn: Turn, step: Step, asked: RequestedCall) -> Append:
    """Finish the open step with the requested call."""
    return Append(
        StepFinished(
            turn=turn.turn,
            step=step.step,
            attempt=step.attempt,
            started=step.starts[-1],
            items=(),
            calls=(ProposedCall(index=0, tool=asked.tool, args=asked.args, call_hash=asked.call_hash),),
            stop_reason=MODEL,
        )
    )


def end(turn: Turn, calls: Sequence[Call], world: World) -> Append:
    """End the turn as its call ended, once that is settled."""
    outcome = next((call.outcome for call in calls), None)
    if outcome == "succeeded":
        return end_turn(turn, (), "completed", None, world)
    return end_turn(turn, (), "failed", f"the requested call did not succeed: {outcome or 'it never ran'}", world)
