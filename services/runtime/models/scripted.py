r"""A model that plays a script, for demonstrations, tests and benchmarks.

    rules:
      - match: {last_user: 'fix (?P<file>\S+)', steps: 0}
        reasoning: I look first.
        calls:
          - {tool: read_file, args: {path: "{{file}}"}}
      - match: {last_tool: read_file, last_result: 'return (?P<value>\d+)'}
        text: "It returns {{value}}."
        delta_seconds: 0.02
      - match: always
        error: {message: overloaded, retriable: true, times: 2}
        text: I am here again.

The model plays the first rule whose conditions all hold. If no rule fits, the answer is a final failure that says what
the conversation looked like. `{{name}}` and `{{1}}` are groups of the rule's expressions, `{{input}}` is the last user
text, `{{result}}` the last tool result; anything else in double braces stays as it is.

A script may set `context_tokens`, next to `rules`: it refuses a longer conversation, as a provider does.

Summaries are written by the rules whose match says `summary: true`, and by no others. Without such a rule, a summary
says how long the conversation is, and how it began and ended.

An answer depends on the conversation alone, never on earlier calls: a runtime that takes a thread over, or a test that
repeats a run, gets the same one. The only exception is an error with `times`, which counts.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from services.runtime.models.port import (
    AnswerItem,
    Delta,
    EmitDelta,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelRequest,
    TokenUsage,
    TranscriptItem,
    text_of_content,
)

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for the estimates of tokens; nobody pays by them."""
FAILURES_REMEMBERED_MAX = 10_000
"""Conversations whose failures are counted for `times`; beyond it counting begins anew."""
SHOWN_CHARACTERS_MAX = 200
"""Characters of a text that a failure or a summary quotes."""

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}")
_WORDS = re.compile(r"\s*\S+\s*")


class ScriptError(Exception):
    """A script cannot be used. The text names the script, the field, and what is wrong with it."""


def _compiled(expression: object) -> object:
    if not isinstance(expression, str):
        return expression
    try:
        return re.compile(expression, re.DOTALL)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error


Expression = Annotated[re.Pattern[str], BeforeValidator(_compiled)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Match(_Section):
    """Conditions of a rule. All that are given must hold."""

    last_user: Expression | None = None
    """Expression that is searched in the last user message."""
    steps: int | None = None
    """Number of answers that the model has given since that message."""
    last_tool: str | None = None
    """Tool of the last result, if nothing came after that."""
    last_result: Expression | None = None
    last_outcome: str | None = None
    summary: bool = False
    """Whether the rule writes summaries. The last user message is then the one before the request for the summary."""


class Call(_Section):
    tool: str
    args: dict[str, JsonValue] = {}
    malformed: str | None = None
    """Arguments that are not a JSON object, as a weak model writes them."""


class Error(_Section):
    message: str
    retriable: bool = False
    retry_after_seconds: float | None = None
    times: int | None = Field(default=None, ge=1)
    """How often the same conversation fails before the rule answers it. None: it always fails."""


class Usage(_Section):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Rule(_Section):
    match: Match | Literal["always"]
    text: str | None = None
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    delay_seconds: float = Field(default=0, ge=0)
    delta_seconds: float | None = Field(default=None, ge=0)
    """Seconds between two words when the text is streamed. None: the answer comes without deltas."""
    error: Error | None = None
    usage: Usage | None = None
    """Tokens that the answer claims. None: an estimate from the length of the texts."""


class Script(_Section):
    rules: tuple[Rule, ...]
    context_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the longest conversation that the model accepts, by its own estimate. None: unlimited."""


def read_script(path: Path) -> Script:
    """Read a script from a file. Raises ScriptError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_script(text, str(path))


def parse_script(text: str, named: str = "script") -> Script:
    """Read a script from YAML; errors call it `named`. Raises ScriptError."""
    try:
        data: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScriptError(f"{named}: no YAML: {' '.join(str(error).split())}") from error
    try:
        return Script.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the script'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False)
        )
        raise ScriptError(f"{named}: {problems}") from error


class ScriptedModel:
    """Plays a script. The answer of a rule without a delay comes without yielding to the event loop."""

    def __init__(self, script: Script, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._script = script
        self._sleep = sleep
        self._failures: dict[tuple[int, str], int] = {}

    async def answer(self, request: ModelRequest, emit_delta: EmitDelta, /) -> ModelAnswer | ModelFailure:
        most = self._script.context_tokens
        if most is not None and (asked := _tokens(request.items)) > most:
            return ModelFailure(f"The conversation has {asked} tokens; the model takes {most}.", False, too_long=True)
        items = request.items[:-1] if request.is_summary else request.items
        situation = _situation(items)
        played = next(
            (
                (number, rule, groups)
                for number, rule in enumerate(self._script.rules)
                if _writes_summaries(rule.match) == request.is_summary
                and (groups := _groups(rule.match, situation)) is not None
            ),
            None,
        )
        if played is None and request.is_summary:
            return _summary(items)
        if played is None:
            return ModelFailure(f"The script has no rule for this conversation: {situation}", retriable=False)
        number, rule, groups = played
        if rule.delay_seconds:
            await self._sleep(rule.delay_seconds)
        if rule.error is not None and self._still_fails(number, rule.error, items):
            return ModelFailure(rule.error.message, rule.error.retriable, rule.error.retry_after_seconds)
        text = None if rule.text is None else _filled(rule.text, groups)
        reasoning = None if rule.reasoning is None else _filled(rule.reasoning, groups)
        if rule.delta_seconds is not None:
            await self._stream(rule.delta_seconds, reasoning, text, emit_delta)
        return _answer(rule, groups, reasoning, text, items)

    async def _stream(self, seconds: float, reasoning: str | None, text: str | None, emit_delta: EmitDelta) -> None:
        deltas = [Delta("reasoning", word) for word in _WORDS.findall(reasoning or "")]
        deltas += [Delta("text", word) for word in _WORDS.findall(text or "")]
        for delta in deltas:
            emit_delta(delta)
            if seconds:
                await self._sleep(seconds)

    def _still_fails(self, number: int, error: Error, items: Sequence[TranscriptItem]) -> bool:
        """Whether this conversation has failed by this rule less often than the rule says; counts the try."""
        if error.times is None:
            return True
        key = number, sha256(repr(items).encode(errors="replace")).hexdigest()
        if len(self._failures) >= FAILURES_REMEMBERED_MAX:
            self._failures.clear()
        self._failures[key] = self._failures.get(key, 0) + 1
        return self._failures[key] <= error.times


@dataclass(frozen=True, slots=True)
class _Situation:
    """What rules can ask of a conversation; `str` of it is what a failure shows."""

    input: str
    steps: int
    tool: str | None
    result: str | None
    outcome: str | None

    def __str__(self) -> str:
        shown = [f"steps {self.steps}", f"last user text {self.input[:SHOWN_CHARACTERS_MAX]!r}"]
        if self.tool is not None:
            shown.append(f"last tool {self.tool} ({self.outcome}) {(self.result or '')[:SHOWN_CHARACTERS_MAX]!r}")
        return ", ".join(shown)


def _situation(items: Sequence[TranscriptItem]) -> _Situation:
    """Return what rules ask of a conversation. Items of one answer follow each other, so they count as one step."""
    user_at = next((at for at in range(len(items) - 1, -1, -1) if _is_user(items[at])), -1)
    steps, in_answer = 0, False
    for item in items[user_at + 1 :]:
        answers = item["kind"] in {"reasoning", "tool_call", "message"}
        steps += answers and not in_answer
        in_answer = answers
    last = items[-1] if items else None
    result = last if last is not None and last["kind"] == "tool_result" else None
    return _Situation(
        input=text_of_content(items[user_at].get("content")) if user_at >= 0 else "",
        steps=steps,
        tool=None if result is None else str(result["tool"]),
        result=None if result is None else text_of_content(result.get("content")),
        outcome=None if result is None else str(result.get("outcome")),
    )


def _is_user(item: TranscriptItem) -> bool:
    return item["kind"] == "message" and item.get("role") == "user"


def _writes_summaries(match: Match | Literal["always"]) -> bool:
    return match != "always" and match.summary


def _summary(items: Sequence[TranscriptItem]) -> ModelAnswer:
    """Return the summary of a script that has no rule for summaries."""
    users = [text_of_content(item.get("content"))[:SHOWN_CHARACTERS_MAX] for item in items if _is_user(item)]
    told = [f"It began with: {users[0]}", f"The last that was asked: {users[-1]}"] if users else []
    answers = [AnswerItem("text", "\n".join([f"The conversation so far has {len(items)} items.", *told]))]
    return ModelAnswer(items=answers, usage=_estimated(answers, [], items))


def _groups(match: Match | Literal["always"], situation: _Situation) -> Mapping[str, str] | None:
    """Return the groups that the rule's expressions found; None if a condition does not hold."""
    groups = {"input": situation.input, "result": situation.result or ""}
    if match == "always":
        return groups
    if match.steps is not None and match.steps != situation.steps:
        return None
    if match.last_tool is not None and match.last_tool != situation.tool:
        return None
    if match.last_outcome is not None and match.last_outcome != situation.outcome:
        return None
    for expression, text in ((match.last_user, situation.input), (match.last_result, situation.result)):
        if expression is None:
            continue
        found = None if text is None else expression.search(text)
        if found is None:
            return None
        groups |= {str(at): value or "" for at, value in enumerate(found.groups(), start=1)}
        groups |= {name: value or "" for name, value in found.groupdict().items()}
    return groups


def _filled(value: str, groups: Mapping[str, str]) -> str:
    """Return the text with its placeholders replaced. Unknown names stay, so a script may contain other templates."""
    return _PLACEHOLDER.sub(lambda found: groups.get(found[1], found[0]), value) if "{{" in value else value


def _filled_json(value: JsonValue, groups: Mapping[str, str]) -> JsonValue:
    match value:
        case str():
            return _filled(value, groups)
        case list():
            return [_filled_json(item, groups) for item in value]
        case dict():
            return {name: _filled_json(item, groups) for name, item in value.items()}
        case _:
            return value


def _answer(
    rule: Rule, groups: Mapping[str, str], reasoning: str | None, text: str | None, items: Sequence[TranscriptItem]
) -> ModelAnswer:
    answers = [] if reasoning is None else [AnswerItem("reasoning", reasoning)]
    if text is not None:
        answers.append(AnswerItem("text", text))
    calls = [
        ModelCall(
            tool=_filled(call.tool, groups),
            args={name: _filled_json(value, groups) for name, value in call.args.items()},
            malformed=call.malformed,
        )
        for call in rule.calls
    ]
    return ModelAnswer(
        items=answers,
        calls=calls,
        stop_reason="tool_call" if calls else "stop",
        usage=_estimated(answers, calls, items) if rule.usage is None else TokenUsage(**rule.usage.model_dump()),
    )


def _estimated(answers: list[AnswerItem], calls: list[ModelCall], items: Sequence[TranscriptItem]) -> TokenUsage:
    said = sum(len(item.text) for item in answers) + sum(len(call.tool) + len(str(call.args)) for call in calls)
    return TokenUsage(input_tokens=_tokens(items), output_tokens=said // CHARACTERS_PER_TOKEN + 1)


def _tokens(items: Sequence[TranscriptItem]) -> int:
    heard = sum(len(str(item.get("content") or item.get("text") or item.get("args"))) for item in items)
    return heard // CHARACTERS_PER_TOKEN + 1
