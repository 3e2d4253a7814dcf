"""The runtime's limits (DESIGN 12), and how a thread's own narrow them. All act before an append."""

from dataclasses import dataclass
from typing import Final

from schemas.config import Config
from schemas.config import Limits as OwnLimits


@dataclass(frozen=True, slots=True)
class Limits:
    steps_per_turn: int = 100
    turn_seconds: int = 3_600
    """Of its own work: time spent waiting for people, or for child threads, does not count."""
    parallel_calls: int = 8
    model_tries: int = 3
    retry_base_seconds: float = 1.0
    retry_most_seconds: float = 60.0
    approval_seconds: int = 86_400
    dispatch_wait_seconds: int = 600
    """How long a dispatched call may wait for an executor to claim it."""
    client_tool_seconds: int = 86_400
    deadline_grace_seconds: int = 60
    """After a call's deadline, or a cancel, before the runtime gives up on its executor."""
    calls_per_step: int = 64
    turn_tokens: int = 0
    """That a turn may use, those of its child threads not among them. 0: as many as it likes."""
    context_tokens: int = 0
    """A larger context is compacted before the next step. 0: none is, unless somebody asks."""
    child_depth: int = 3
    """Generations of child threads below the topmost thread."""
    children_per_turn: int = 16
    parallel_tasks: int = 4
    """Of a plan, at once."""
    plan_tasks: int = 64
    """That a version of a plan may have."""
    child_look_seconds: int = 10
    """How often a parent's owner looks up whether a child has come to an end that nobody told it of."""
    ephemeral_seconds: int = 3_600
    """How long an ephemeral thread may live."""


NO_LIMITS_OF_ITS_OWN: Final = OwnLimits()


def narrowed(limits: Limits, config: Config) -> Limits:
    own = config.limits
    if own == NO_LIMITS_OF_ITS_OWN:
        return limits
    return Limits(
        steps_per_turn=min(limits.steps_per_turn, own.steps_per_turn or limits.steps_per_turn),
        turn_seconds=min(limits.turn_seconds, own.turn_seconds or limits.turn_seconds),
        parallel_calls=min(limits.parallel_calls, own.parallel_calls or limits.parallel_calls),
        model_tries=min(limits.model_tries, own.model_tries or limits.model_tries),
        retry_base_seconds=limits.retry_base_seconds,
        retry_most_seconds=limits.retry_most_seconds,
        approval_seconds=limits.approval_seconds,
        dispatch_wait_seconds=limits.dispatch_wait_seconds,
        client_tool_seconds=limits.client_tool_seconds,
        deadline_grace_seconds=limits.deadline_grace_seconds,
        calls_per_step=limits.calls_per_step,
        turn_tokens=_narrower(limits.turn_tokens, own.turn_tokens),
        context_tokens=_narrower(limits.context_tokens, own.context_tokens),
        child_depth=limits.child_depth if own.child_depth is None else min(limits.child_depth, own.child_depth),
        children_per_turn=(
            limits.children_per_turn
            if own.children_per_turn is None
            else min(limits.children_per_turn, own.children_per_turn)
        ),
        parallel_tasks=min(limits.parallel_tasks, own.parallel_tasks or limits.parallel_tasks),
        plan_tasks=limits.plan_tasks,
        child_look_seconds=limits.child_look_seconds,
        ephemeral_seconds=limits.ephemeral_seconds,
    )


def _narrower(limit: int, own: int | None) -> int:
    """Of two limits of which 0 or nothing is none."""
    return min(limit or own or 0, own or limit)


def retry_delay_ms(limits: Limits, failures: int, retry_after_seconds: float | None) -> int:
    """Exponential from `retry_base_seconds`, bounded; at least what the provider asked for, within the same bound."""
    backoff = limits.retry_base_seconds * 2.0 ** min(failures, 16)
    return int(1000 * min(limits.retry_most_seconds, max(backoff, retry_after_seconds or 0.0)))
