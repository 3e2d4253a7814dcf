"""The runtime's limits, and how a thread's own limits narrow them.

All of them act before an append: the runtime never decides an event that passes a limit. The fold knows none of them,
so a limit that changes never changes what a stored record means. A thread's configuration may narrow a limit and cannot
widen it, because the operator pays for what runs and the author of a thread may be anybody.

Limits that two deployments need at two values are settings, and their defaults stand in `RuntimeSettings` alone. The
others are the constants below.
"""

from dataclasses import dataclass, replace
from typing import Final

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from services.chassis.backoff import backoff_seconds

PARALLEL_CALLS: Final = 8
"""Calls of one turn that executors or child threads work on at once. A thread that needs fewer says so itself."""
CALLS_PER_STEP: Final = 64
"""Calls that one answer of the model may make; further ones are denied. A model that asks for more is in a loop."""
MODEL_TRIES: Final = 3
"""Tries of one step. Most failures of providers pass within seconds; those that stay are told to the user soon."""
RETRY_FIRST_SECONDS: Final = 1.0
"""Seconds before the first retry of a model call; each further pause is twice as long."""
RETRY_MOST_SECONDS: Final = 60.0
"""Seconds that a pause between two tries may take, whatever the provider asks for: a person is waiting."""
DISPATCH_WAIT_SECONDS: Final = 600
"""Seconds that a dispatched call waits for an executor to claim it: long enough to replace all executors of a pool."""
CHILDREN_PER_TURN: Final = 16
"""Child threads that one turn may begin, so that a confused model cannot multiply itself without end."""
PARALLEL_TASKS: Final = 4
"""Tasks of one plan that run at once. Each is a thread with model calls of its own."""
PLAN_TASKS: Final = 64
"""Tasks that a version of a plan may have; one with more is rejected. All of them stand in the parent's state."""
CHILD_LOOK_SECONDS: Final = 10
"""Seconds between two looks into the views for the end of a child. The child's owner reports the end at once, so a look
finds something only if that owner died just then.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a decision obeys, for one thread once they are narrowed."""

    steps_per_turn: int
    turn_seconds: int
    """Seconds of the turn's own work: time spent waiting for people or for child threads does not count."""
    turn_tokens: int
    """Tokens that a turn may use, without those of its child threads. 0: unlimited."""
    context_tokens: int
    """Tokens beyond which a context is compacted before the next step. 0: a context is compacted on request only."""
    approval_seconds: int
    client_tool_seconds: int
    deadline_grace_seconds: int
    """Seconds after a call's deadline, or after a cancel, before the runtime gives up on whoever runs the call."""
    child_depth: int
    """Generations of child threads below the topmost thread."""
    ephemeral_seconds: int
    """Seconds that an ephemeral thread may live."""
    parallel_calls: int = PARALLEL_CALLS
    calls_per_step: int = CALLS_PER_STEP
    model_tries: int = MODEL_TRIES
    retry_first_seconds: float = RETRY_FIRST_SECONDS
    retry_most_seconds: float = RETRY_MOST_SECONDS
    dispatch_wait_seconds: int = DISPATCH_WAIT_SECONDS
    children_per_turn: int = CHILDREN_PER_TURN
    parallel_tasks: int = PARALLEL_TASKS
    plan_tasks: int = PLAN_TASKS
    child_look_seconds: int = CHILD_LOOK_SECONDS


NO_LIMITS_OF_ITS_OWN: Final = OwnLimits()


def narrowed(limits: Limits, config: Config) -> Limits:
    """Return the service's limits, each replaced by the thread's own if that is stricter."""
    own = config.limits
    if own == NO_LIMITS_OF_ITS_OWN:
        return limits
    return replace(
        limits,
        steps_per_turn=min(limits.steps_per_turn, own.steps_per_turn or limits.steps_per_turn),
        turn_seconds=min(limits.turn_seconds, own.turn_seconds or limits.turn_seconds),
        parallel_calls=min(limits.parallel_calls, own.parallel_calls or limits.parallel_calls),
        model_tries=min(limits.model_tries, own.model_tries or limits.model_tries),
        turn_tokens=_stricter(limits.turn_tokens, own.turn_tokens),
        context_tokens=_stricter(limits.context_tokens, own.context_tokens),
        # 0 is a limit of its own for these two: such a thread may begin no child at all.
        child_depth=limits.child_depth if own.child_depth is None else min(limits.child_depth, own.child_depth),
        children_per_turn=(
            limits.children_per_turn
            if own.children_per_turn is None
            else min(limits.children_per_turn, own.children_per_turn)
        ),
        parallel_tasks=min(limits.parallel_tasks, own.parallel_tasks or limits.parallel_tasks),
    )


def _stricter(limit: int, own: int | None) -> int:
    """Return the stricter of two limits; 0 and None mean unlimited."""
    return min(limit or own or 0, own or limit)


def retry_delay_ms(limits: Limits, failures: int, retry_after_seconds: float | None) -> int:
    """Return the pause before the next try, in milliseconds; `failures` are those before the one just seen.

    The pause doubles with each failure and is at least what the provider asked for. Both are bounded by
    `retry_most_seconds`.
    """
    pause_seconds = backoff_seconds(failures + 1, limits.retry_first_seconds, limits.retry_most_seconds)
    return int(1000 * min(limits.retry_most_seconds, max(pause_seconds, retry_after_seconds or 0.0)))
