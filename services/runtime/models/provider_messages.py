"""Translation: items of a transcript to messages of pydantic-ai, and its answers back.

A transcript may hold anything: an answer whose calls were cancelled, inputs between a call and its result, items of a
parent's model. Providers refuse a conversation unless each call has exactly one result, in the message right after it
and before anything else there, and unless ids of calls are unique. So messages are built one answer at a time
(`_Conversation`), and each call takes its result with it, wherever the result stands in the transcript.

Providers also want back what they sent with an answer: signatures of reasoning, ids of items. It travels in an item's
`provider`. pydantic-ai drops what belongs to another provider, so a thread may change its model at any time.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal, TypeAlias, cast

from pydantic import JsonValue
from pydantic_ai import messages as ai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from schemas.tools import ToolSpec
from services.runtime.models.port import (
    AnswerItem,
    Delta,
    ModelAnswer,
    ModelCall,
    TokenUsage,
    TranscriptItem,
    as_object,
    text_of_content,
    text_of_summary,
)

NO_RESULT = "No result of this call was recorded."
"""Stands in for a missing result. Every call should have one; a provider would refuse the whole conversation."""
CALLS_KEY = "calls"
"""Key in an item's `provider` for what the provider wants back with the calls of the same answer, by provider id."""

_OUTCOMES: dict[str, Literal["success", "failed", "denied", "interrupted"]] = {
    "succeeded": "success",
    "denied": "denied",
    "expired": "denied",
    "cancelled": "interrupted",
    "unknown": "interrupted",
    "not_started": "interrupted",
}
"""Outcome of a call in pydantic-ai's words; every other outcome is a failure."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of a call's id that every provider accepts."""
_Part: TypeAlias = ai.TextPart | ai.ThinkingPart | ai.ToolCallPart
_Kept: TypeAlias = Mapping[str, JsonValue]
"""The `provider` of an item: name, id, signature, details, system and calls; each only if the provider sent one."""


def to_messages(items: Sequence[TranscriptItem], instructions: str | None) -> list[ai.ModelMessage]:
    """Return the conversation as providers accept it; the last message is always a request.

    A result is sent with its call, so a result item only marks that the answer before it is complete. A resolution is
    told as text: its call was answered in an earlier turn, and a second result would be refused.
    """
    conversation = _Conversation(
        instructions, {str(item["call"]): item for item in items if item["kind"] == "tool_result"}
    )
    for item in items:
        match item["kind"]:
            case "message" if item.get("role") == "assistant":
                conversation.say(item, _text_part(item))
            case "message":
                conversation.tell(text_of_content(item.get("content")))
            case "reasoning":
                conversation.say(item, _thinking_part(item))
            case "tool_call":
                conversation.call(item)
            case "tool_result":
                conversation.end_answer()
            case "summary":
                conversation.tell(text_of_summary(item))
            case _:
                told = f"Call {item.get('call')} of {item.get('tool')} is settled now: {item.get('outcome')}."
                conversation.tell(f"{told}\n{text_of_content(item.get('content'))}")
    return conversation.end()


def to_parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name, description=tool.description or None, parameters_json_schema=dict(tool.input_schema)
            )
            for tool in tools
        ]
    )


def to_delta(event: ai.ModelResponseStreamEvent) -> Delta | None:
    """Return the text that an event of the stream brings; None for calls and for what ends a part."""
    match event:
        case ai.PartStartEvent(part=ai.TextPart(content=text)) if text:
            return Delta("text", text)
        case ai.PartStartEvent(part=ai.ThinkingPart(content=text)) if text:
            return Delta("reasoning", text)
        case ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=text)) if text:
            return Delta("text", text)
        case ai.PartDeltaEvent(delta=ai.ThinkingPartDelta(content_delta=str() as text)) if text:
            return Delta("reasoning", text)
        case _:
            return None


def to_answer(response: ai.ModelResponse) -> ModelAnswer:
    """Return a whole response as the runtime records it. Files are only named: a transcript holds text."""
    items: list[AnswerItem] = []
    calls: list[ModelCall] = []
    of_calls: dict[str, JsonValue] = {}
    for part in response.parts:
        match part:
            case ai.TextPart() if part.content:
                items.append(AnswerItem("text", part.content, _kept_of(part, response)))
            case ai.ThinkingPart() if part.content or part.signature or part.id:
                items.append(AnswerItem("reasoning", part.content, _kept_of(part, response)))
            case ai.ToolCallPart():
                calls.append(_call(part))
                if (kept := _kept_of(part, response)) is not None:
                    of_calls[part.tool_call_id] = kept
            case ai.FilePart():
                items.append(AnswerItem("text", f"[{part.content.media_type}, not kept]"))
            case _:
                pass
    if of_calls:
        items = _with_calls(items, of_calls)
    usage = response.usage
    return ModelAnswer(
        items=items,
        calls=calls,
        stop_reason=response.finish_reason or ("tool_call" if calls else "stop"),
        usage=TokenUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            reasoning_tokens=_reasoning_tokens(usage.details),
        ),
        response_id=response.provider_response_id,
    )


class _Conversation:
    """Builds messages that alternate: what the model said, then what it was told since, results of its calls first.

    Parts of the answer that is being built wait in `_saying` and its calls in `_calling`. Once the answer is complete,
    its calls move to `_pending` and wait there for their results, which open the next request.
    """

    def __init__(self, instructions: str | None, results: Mapping[str, TranscriptItem]) -> None:
        self._instructions = instructions
        self._results = results
        self._messages: list[ai.ModelMessage] = []
        self._saying: list[_Part] = []
        self._told: list[ai.UserPromptPart] = []
        self._pending: list[tuple[ai.ToolCallPart, str]] = []
        """Calls of the last complete answer, with the names that the transcript has for them."""
        self._calling: list[tuple[ai.ToolCallPart, str]] = []
        self._ids: set[str] = set()
        self._kept_of_calls: dict[str, _Kept] = {}
        self._kept_of_answer: _Kept = {}

    def tell(self, text: str) -> None:
        """Add something that the model is told: a user's message, a summary, a resolution."""
        self.end_answer()
        if text:
            self._told.append(ai.UserPromptPart(text))

    def say(self, item: TranscriptItem, part: _Part | None) -> None:
        """Add something that the model said. An item without a part may still carry what belongs to the calls."""
        kept = as_object(item.get("provider"))
        self._kept_of_calls |= {name: as_object(value) for name, value in as_object(kept.get(CALLS_KEY)).items()}
        if part is not None:
            self._begin_answer()
            self._saying.append(part)
            if kept.get("name"):
                self._kept_of_answer = kept

    def call(self, item: TranscriptItem) -> None:
        """Add a call that the model made."""
        self._begin_answer()
        name = str(item["call"])
        given = _text(item, "provider_id")
        kept = self._kept_of_calls.get(given or "", {})
        identity = self._identity(name, given)
        malformed = _text(item, "malformed")
        part = ai.ToolCallPart(
            str(item["tool"]),
            dict(as_object(item.get("args"))) if malformed is None else malformed,
            identity,
            id=_text(kept, "id"),
            provider_name=_text(kept, "name"),
            provider_details=_details(kept),
        )
        self._saying.append(part)
        self._calling.append((part, name))
        if kept.get("name"):
            self._kept_of_answer = kept

    def _identity(self, name: str, given: str | None) -> str:
        """Return the provider's own id, unless another call has it: a fork's model may count as its parent's did."""
        plain, digest = f"call_{name.replace('.', '_')}", sha256(name.encode()).hexdigest()
        made = plain if _ID.fullmatch(plain) else f"call_{digest[:32]}"
        free = [each for each in (given, made) if each is not None and each not in self._ids]
        identity = free[0] if free else f"call_{digest[:32]}_{len(self._ids)}"
        self._ids.add(identity)
        return identity

    def end_answer(self) -> None:
        """Close the model's answer, if one is open: what follows was told to the model."""
        if not self._saying:
            return
        self._messages.append(
            ai.ModelResponse(
                parts=self._saying,
                provider_name=_text(self._kept_of_answer, "name"),
                canonical_system=_text(self._kept_of_answer, "system"),
            )
        )
        self._pending = self._calling
        self._saying, self._calling, self._kept_of_answer = [], [], {}

    def end(self) -> list[ai.ModelMessage]:
        self.end_answer()
        self._flush_told()
        if not self._messages or not isinstance(self._messages[-1], ai.ModelRequest):
            # Providers answer a request; one without parts carries the instructions alone.
            self._messages.append(ai.ModelRequest(parts=[], instructions=self._instructions))
        return self._messages

    def _begin_answer(self) -> None:
        if not self._saying:
            self._flush_told()

    def _flush_told(self) -> None:
        parts: list[ai.ModelRequestPart] = [self._return_of(part, name) for part, name in self._pending]
        parts += self._told
        if parts:
            self._messages.append(ai.ModelRequest(parts=parts, instructions=self._instructions))
        self._pending, self._told = [], []

    def _return_of(self, call: ai.ToolCallPart, name: str) -> ai.ToolReturnPart:
        result = self._results.get(name)
        if result is None:
            return ai.ToolReturnPart(call.tool_name, NO_RESULT, call.tool_call_id, outcome="interrupted")
        outcome = _OUTCOMES.get(str(result.get("outcome")), "failed")
        return ai.ToolReturnPart(
            call.tool_name, text_of_content(result.get("content")), call.tool_call_id, outcome=outcome
        )


def _text_part(item: TranscriptItem) -> ai.TextPart | None:
    text, kept = text_of_content(item.get("content")), as_object(item.get("provider"))
    if not text:
        return None
    return ai.TextPart(text, id=_text(kept, "id"), provider_name=_text(kept, "name"), provider_details=_details(kept))


def _thinking_part(item: TranscriptItem) -> ai.ThinkingPart | None:
    text, kept = str(item.get("text") or ""), as_object(item.get("provider"))
    if not text and not kept.get("signature") and not kept.get("id"):
        return None
    return ai.ThinkingPart(
        text,
        id=_text(kept, "id"),
        signature=_text(kept, "signature"),
        provider_name=_text(kept, "name"),
        provider_details=_details(kept),
    )


def _call(part: ai.ToolCallPart) -> ModelCall:
    """Return a call; arguments that are not a JSON object are kept as text, so the model can be told what was wrong."""
    try:
        args = part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return ModelCall(part.tool_name, {}, part.tool_call_id, malformed=str(part.args))
    return ModelCall(part.tool_name, args, part.tool_call_id)


def _kept_of(part: _Part, response: ai.ModelResponse) -> dict[str, JsonValue] | None:
    """Return what the provider wants back with this part; None if it sent nothing that matters."""
    kept = {
        "name": part.provider_name,
        "id": part.id,
        "signature": part.signature if isinstance(part, ai.ThinkingPart) else None,
        "details": part.provider_details,
        "system": response.canonical_system if part.provider_name == response.provider_name else None,
    }
    if not any(kept[name] for name in ("id", "signature", "details")):
        return None
    return cast("dict[str, JsonValue]", {name: value for name, value in kept.items() if value})


def _with_calls(items: list[AnswerItem], kept_of_calls: dict[str, JsonValue]) -> list[AnswerItem]:
    """Put what belongs to calls into the last item, because recorded calls have no field for it.

    If the answer has no items, an empty reasoning carries it; no provider is ever sent that one.
    """
    *before, last = items or [AnswerItem("reasoning", "")]
    return [*before, AnswerItem(last.kind, last.text, {**(last.provider or {}), CALLS_KEY: kept_of_calls})]


def _reasoning_tokens(details: Mapping[str, int]) -> int:
    """Return the tokens of reasoning, for which OpenAI and Google have different names."""
    return details.get("reasoning_tokens", 0) or details.get("thoughts_tokens", 0)


def _text(value: Mapping[str, JsonValue], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _details(kept: _Kept) -> dict[str, object] | None:
    found = kept.get("details")
    return dict(found) if isinstance(found, dict) else None
