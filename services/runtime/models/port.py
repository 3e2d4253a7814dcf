"""The port to language models: a conversation goes in, an answer or a failure comes out. Neither raises."""

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
"""As the transcript holds it, by `kind`:

    message       role (user | assistant), content [{"type": "text", "text"} | {"type": "artifact", …}], provider?
    reasoning     text, provider?
    tool_call     call (such as 1.1.0), tool, args, provider_id?, malformed?
    tool_result   call, tool, outcome, content (a tool's result, or a sentence)
    resolution    as tool_result, for a call of an earlier turn that was settled later
    summary       text, state?: stands for all that came before
"""

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | tuple[str, ...]
"""A tuple names the tools of which the model must call one."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    model: str
    settings: Mapping[str, JsonValue]
    instructions: str | None
    items: Sequence[TranscriptItem]
    tools: Sequence[ToolSpec] = ()
    tool_choice: ToolChoice | None = None
    """None: what the settings say, or the provider's default."""
    is_summary: bool = False
    """Whether a summary of the conversation is asked for, by its last item."""


@dataclass(frozen=True, slots=True)
class AnswerItem:
    kind: Literal["text", "reasoning"]
    text: str
    provider: Mapping[str, JsonValue] | None = None
    """What the provider wants back unchanged, such as signatures and ids; opaque to everybody else."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    tool: str
    args: Mapping[str, JsonValue]
    provider_id: str | None = None
    malformed: str | None = None
    """What the model wrote as arguments where that is no JSON object; `args` is then empty."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input tokens, those read from the provider's cache."""
    reasoning_tokens: int = 0
    """Of the output tokens."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    items: Sequence[AnswerItem]
    calls: Sequence[ModelCall] = ()
    stop_reason: str = "stop"
    """`stop`, `tool_call`, `length`, `content_filter`, or the provider's own word."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFailure:
    error: str
    retriable: bool
    retry_after_seconds: float | None = None
    """What the provider asked for."""
    too_long: bool = False
    """Whether the model does not take as much as it was asked with: the same will fail again."""


@dataclass(frozen=True, slots=True)
class Delta:
    kind: Literal["text", "reasoning"]
    text: str


EmitDelta: TypeAlias = Callable[[Delta], None]


class Model(Protocol):
    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure: ...


class NamedModels:
    """Chooses by the model's name: those in `named` by their whole name, everything else goes to `others`."""

    def __init__(self, named: Mapping[str, Model], others: Model) -> None:
        self._named = named
        self._others = others

    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        return await self._named.get(request.model, self._others).answer(request, emit_delta)


def text_of_content(content: JsonValue) -> str:
    """A message's or a tool result's content as the text that a model reads."""
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
    """With what goes on beside it."""
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
    """Empty where it is none."""
    return value if isinstance(value, dict) else {}


def _as_json(value: JsonValue) -> str:
    """Results of client tools, and of people who settle a call, are any JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
