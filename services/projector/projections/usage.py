"""The rows of the view `usage`: the tokens of each response of a model.

A response that lost its race has a row, too: the provider bills it. A record that never fitted its thread (rejected,
ignored, duplicate) has none, because it is no sign of a response of its own.
"""

from schemas.events import ContextCompacted, StepFinished, Usage
from schemas.state import ThreadState
from services.projector.projections.changes import Applied

COLUMNS = (
    *("tenant", "thread", "seq", "kind", "effect", "turn", "step", "attempt", "model", "response_id", "at"),
    *("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
)


def usage_row(applied: Applied) -> tuple[object, ...] | None:
    """Return the row of a response that took effect or lost its race; None for all other records."""
    record, before, after, verdict = applied
    if verdict.effect not in {"applied", "superseded"}:
        return None
    what: tuple[object, ...]
    match record.data:
        case StepFinished() as data:
            model = model_of(before, data.turn)
            what = ("step", verdict.effect, data.turn, data.step, data.attempt, model, data.response_id)
            tokens = data.usage
        case ContextCompacted() as data:
            turn = None if before.turn is None else before.turn.turn
            what = ("compaction", verdict.effect, turn, None, None, model_of(before, turn), None)
            tokens = data.usage
        case _:
            return None
    return (*record.key, after.seq, *what, record.time_ms, *_tokens(tokens))


def model_of(state: ThreadState, turn: int | None) -> str:
    """Return the model of the turn's configuration; of the thread's, if that turn is not open."""
    if state.turn is not None and state.turn.turn == turn:
        return state.turn.config.model
    return state.config.model if state.config is not None else ""


def _tokens(usage: Usage) -> tuple[int, int, int, int]:
    return usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens
