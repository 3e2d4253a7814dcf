"""A model's answer, or its failure, as the event that ends the step: pure.

What JSON or Postgres cannot carry exactly is replaced, so that it shows.
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
RESPONSE_ID_CHARACTERS_MAX = 500
"""Views find responses by their ids, and an entry of an index holds less than 2,700 bytes."""
STOP_REASON_CHARACTERS_MAX = 200


def step_finished(calling: Calling, answer: ModelAnswer) -> StepFinished:
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
    """`retry_at_ms` is for a failure that another try can mend."""
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
    """Equal ones stay equal."""
    text = sanitize_text(given)
    return text if len(text) <= RESPONSE_ID_CHARACTERS_MAX else f"sha256:{sha256(text.encode()).hexdigest()}"


def _object(value: object) -> dict[str, JsonValue]:
    stored = sanitize_json(value)
    return stored if isinstance(stored, dict) else {}
