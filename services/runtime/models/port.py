"""The port to language models: a conversation goes in, an answer or a failure comes out.

A failure is a value, not an exception, because failing is part of a provider's normal life: the runtime records it and
decides whether to try again. An adapter that raises has a bug; the caller counts that as a failed try.

The words by which items become text for a model stand here, so all providers and the scripted model show the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pydantic import JsonValue

from schemas.tools import LOAD_SKILL_TOOL, ToolSpec

SUMMARY_PREFIX = "Summary of the conversation up to here:\n"
PLAN_PREFIX = "The plan in force:\n"
UNKNOWN_PREFIX = "Calls of which it is not known whether they ran: "
SKILLS_PREFIX = f"Skills that are loaded; {LOAD_SKILL_TOOL} shows what one says again: "

TranscriptItem: TypeAlias = Mapping[str, JsonValue]
"""An item of a conversation, as the transcript holds it. Its fields depend on its `kind`:

    message       role (user | assistant), content [{"type": "text", "text"} | {"type": "artifact", …}], provider?
    reasoning     text, provider?
    tool_call     call (such as 1.1.0), tool, args, provider_id?, malformed?
    tool_result   call, tool, outcome, content (a tool's result, or a sentence)
    resolution    as tool_result, for a call of an earlier turn that was settled later
    summary       text, state?: replaces everything before it
"""

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | tuple[str, ...]
"""How the model may use tools. A tuple names tools of which it has to call one."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    model: str
    settings: Mapping[str, JsonValue]
    instructions: str | None
    items: Sequence[TranscriptItem]
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolChoice | None = None
    """None: the choice of the settings, or else the provider's default."""
    is_summary: bool = False
    """Whether the last item asks for a summary of the conversation. Only the scripted model needs to know."""


@dataclass(frozen=True, slots=True)
class AnswerItem:
    kind: Literal["text", "reasoning"]
    text: str
    provider: Mapping[str, JsonValue] | None = None
    """Data that the provider wants back unchanged, such as signatures and ids. Nobody else reads it."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    tool: str
    args: Mapping[str, JsonValue]
    provider_id: str | None = None
    malformed: str | None = None
    """Text that the model wrote as arguments if it is not a JSON object; `args` is then empty."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that the provider read from its cache. `input_tokens` includes them."""
    reasoning_tokens: int = 0
    """Output tokens that the model spent on reasoning. `output_tokens` includes them."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    items: Sequence[AnswerItem]
    calls: Sequence[ModelCall] = ()
    stop_reason: str = "stop"
    """Why the model stopped: `stop`, `tool_call`, `length`, `content_filter`, or the provider's own word."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFailure:
    error: str
    retriable: bool
    retry_after_seconds: float | None = None
    """Pause that the provider asked for."""
    too_long: bool = False
    """Whether the conversation is longer than the model accepts. The same conversation would fail again."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer that is still being written."""

    kind: Literal["text", "reasoning"]
    text: str


EmitDelta: TypeAlias = Callable[[Delta], None]


class Model(Protocol):
    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        """Ask the model, and call `emit_delta` with each piece of the answer as it comes. Never raises.

        The deltas are for whoever watches; only the returned answer counts. Cancelling the call ends it at once.
        """
        ...


class NamedModels:
    """Chooses a model by its name: one of `named` if the whole name is in there, otherwise `others`."""

    def __init__(self, named: Mapping[str, Model], others: Model) -> None:
        self._named = named
        self._others = others

    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        return await self._named.get(request.model, self._others).answer(request, emit_delta)


def text_of_content(content: JsonValue) -> str:
    """Return the content of a message or of a tool result as the text that a model reads."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(map(_text_of_block, content))
    if isinstance(content, dict) and isinstance(blocks := content.get("content"), list):
        text = "\n".join(map(_text_of_block, blocks))
        code = content.get("exit_code")
        return f"{text.rstrip()}\n[exit code {code}]" if code not in {None, 0} else text
    return _as_json(content)


def text_of_summary(item: TranscriptItem) -> str:
    """Return a summary as text, followed by what is still going on: the plan, unknown calls and loaded skills.

    These are not part of the summary's text because the model that wrote it cannot know them for sure; the state does.
    """
    state = as_object(item.get("state"))
    tasks, unknown, skills = as_object(state.get("plan")).get("tasks"), state.get("unknown_calls"), state.get("skills")
    parts = [f"{SUMMARY_PREFIX}{item.get('text')}"]
    if isinstance(tasks, list) and tasks:
        told = [f"- {task.get('id')}: {task.get('title')} ({task.get('status')})" for task in map(as_object, tasks)]
        parts.append(PLAN_PREFIX + "\n".join(told))
    if isinstance(unknown, list) and unknown:
        parts.append(UNKNOWN_PREFIX + ", ".join([f"{as_object(each).get('tool')}" for each in unknown]))
    if isinstance(skills, list) and skills:
        told = [f"{skill.get('name')} ({skill.get('version')})" for skill in map(as_object, skills)]
        parts.append(SKILLS_PREFIX + ", ".join(told))
    return "\n\n".join(parts)


def _text_of_block(block: JsonValue) -> str:
    if not isinstance(block, dict):
        return _as_json(block)
    if block.get("type") == "text":
        return str(block.get("text"))
    if block.get("type") == "artifact":
        named = [str(block[key]) for key in ("name", "media_type", "summary") if block.get(key)]
        return f"[artifact {block.get('sha256')}: {', '.join(named)}, {block.get('size')} bytes]"
    return _as_json(block)


def as_object(value: JsonValue) -> Mapping[str, JsonValue]:
    """Return the value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def _as_json(value: JsonValue) -> str:
    """Return any JSON as text: client tools, and people who settle a call, may give whatever they like."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
