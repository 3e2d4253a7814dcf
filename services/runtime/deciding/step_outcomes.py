"""The event that a model's answer or failure becomes. Pure.

A model may write anything: lone surrogates, NUL characters, numbers that JSON does not have. JSON or Postgres would
refuse the event, and the turn with it. So such text is replaced by something that shows, and everything that a provider
words freely is bounded.
"""

from hashlib import sha256

from pydantic import JsonValue

from schemas.canonical import call_hash
from schemas.events import (
    CONTEXT_TOO_LONG,
    AnswerItem,
    AnswerReasoning,
    AnswerText,
    Failure,
    ProposedCall,
    StepFailed,
    StepFinished,
    Usage,
)
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.runtime.deciding.decisions import Calling
from services.runtime.models.port import ModelAnswer, ModelFailure

ERROR_CHARACTERS_MAX = 2_000
"""Characters of an error that are recorded. Some providers repeat the whole request in it."""
RESPONSE_ID_CHARACTERS_MAX = 500
"""Characters of a response id. Views find responses by it, and an entry of an index holds less than 2,700 bytes."""
STOP_REASON_CHARACTERS_MAX = 200
"""Characters of the reason to stop; providers have words of their own for it."""


def step_finished(calling: Calling, answer: ModelAnswer) -> StepFinished:
    """Return the event of an answer. Raises ThreadlogError or ValueError if the answer cannot be an event.

    The hash of a call covers the tool and the arguments as they are recorded: people approve what runs.
    """
    items: list[AnswerItem] = []
    for item in answer.items:
        provider = None if item.provider is None else _object(item.provider)
        if item.kind == "reasoning":
            items.append(AnswerReasoning(text=sanitize_text(item.text), provider=provider))
        else:
            items.append(AnswerText(text=sanitize_text(item.text), provider=provider))
    calls = []
    for index, call in enumerate(answer.calls):
        args = _object(call.args)
        tool = sanitize_text(call.tool)
        calls.append(
            ProposedCall(
                index=index,
                tool=tool,
                args=args,
                call_hash=call_hash(tool, args),
                provider_id=None if call.provider_id is None else sanitize_text(call.provider_id),
                malformed=None if call.malformed is None else sanitize_text(call.malformed),
            )
        )
    usage = answer.usage
    return StepFinished(
        turn=calling.turn,
        step=calling.step,
        attempt=calling.attempt,
        started=calling.started,
        items=tuple(items),
        calls=tuple(calls),
        stop_reason=sanitize_text(answer.stop_reason)[:STOP_REASON_CHARACTERS_MAX],
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
        response_id=None if answer.response_id is None else _response_id(answer.response_id),
    )


def step_failed(calling: Calling, failure: ModelFailure, retry_at_ms: int) -> StepFailed:
    """Return the event of a failure; `retry_at_ms` counts only if a retry can help.

    A conversation that is too long fails again on every try, so it is recorded as final. What helps is a summary.
    """
    retriable = failure.retriable and not failure.too_long
    kind = CONTEXT_TOO_LONG if failure.too_long else "model"
    return StepFailed(
        turn=calling.turn,
        step=calling.step,
        attempt=calling.attempt,
        started=calling.started,
        error=Failure(kind=kind, message=sanitize_text(failure.error)[:ERROR_CHARACTERS_MAX]),
        retriable=retriable,
        retry_at_ms=retry_at_ms if retriable else None,
    )


def step_handed_over(calling: Calling, owner: str) -> StepFailed:
    """Return the event of a call that was cancelled because this process stops; it does not count as a failed try."""
    return StepFailed(
        turn=calling.turn,
        step=calling.step,
        attempt=calling.attempt,
        started=calling.started,
        error=Failure(kind="handover", message=f"{owner} handed the partition over"),
        retriable=True,
        handed_over=True,
    )


def _response_id(given: str) -> str:
    """Return an id that fits an index. A longer one becomes its hash, so equal ids stay equal."""
    text = sanitize_text(given)
    return text if len(text) <= RESPONSE_ID_CHARACTERS_MAX else f"sha256:{sha256(text.encode()).hexdigest()}"


def _object(value: object) -> dict[str, JsonValue]:
    """Return an object as it can be stored; anything else becomes an empty one."""
    stored = sanitize_json(value)
    return stored if isinstance(stored, dict) else {}
