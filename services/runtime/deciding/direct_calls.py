"""Turns that run one call which a principal asks for, and ask no model: pure.

Such a turn has one step, which is answered by the call itself; after that the call goes its way as any other does. Who
asked for it has approved it. Every event is derived from the turn alone, so whoever owns the thread may go on with it.
"""

from collections.abc import Sequence

from schemas.events import ProposedCall, RequestedCall, StepFinished
from schemas.state import Call, QueuedInput, Step, Turn
from services.runtime.deciding.calls import end_turn
from services.runtime.deciding.decisions import Append, World

MODEL = "requested"
"""What its step names in the place of a model."""


def taken_together(free: Sequence[QueuedInput]) -> Sequence[QueuedInput]:
    """Of the inputs that the next turn may take: a call that is asked for has a turn of its own."""
    first_call = next((place for place, item in enumerate(free) if item.call is not None), len(free))
    return free[: max(1, first_call)]


def answer(turn: Turn, step: Step, asked: RequestedCall) -> Append:
    """Of its open step."""
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
    """Once its call is settled."""
    outcome = next((call.outcome for call in calls), None)
    if outcome == "succeeded":
        return end_turn(turn, (), "completed", None, world)
    return end_turn(turn, (), "failed", f"the call came to: {outcome or 'nothing'}", world)
