"""The adapter against the wire formats of real providers: their SDKs run, over a transport that plays their part."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

pytest.importorskip("openai")
pytest.importorskip("anthropic")

from pydantic_ai import exceptions
from pydantic_ai.messages import ModelRequest as AiRequest
from pydantic_ai.messages import ModelResponse as AiResponse
from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from schemas.tools import ToolSpec
from services.runtime.models.port import (
    AnswerItem,
    Delta,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelRequest,
    TokenUsage,
)
from services.runtime.models.provider import ProviderModels, failure_of
from services.runtime.models.provider_messages import NO_RESULT, to_answer, to_messages

SHELL = ToolSpec(
    name="shell",
    description="Run it.",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


def user(text: str) -> dict[str, Any]:
    return {"kind": "message", "role": "user", "content": [{"type": "text", "text": text}]}


def asked(*items, **more) -> ModelRequest:
    return ModelRequest(
        model="m",
        settings=more.pop("settings", {}),
        instructions=more.pop("instructions", "Be brief."),
        items=items or (user("hello"),),
        tools=(SHELL, ToolSpec(name="other")),
        **more,
    )


def as_items(answer: ModelAnswer, turn: int = 1, step: int = 1) -> list[dict[str, Any]]:
    """What the transcript makes of an answer."""
    items: list[dict[str, Any]] = []
    for item in answer.items:
        made: dict[str, Any] = (
            {"kind": "reasoning", "text": item.text}
            if item.kind == "reasoning"
            else {"kind": "message", "role": "assistant", "content": [{"type": "text", "text": item.text}]}
        )
        items.append(made | ({"provider": json.loads(json.dumps(item.provider))} if item.provider else {}))
    for index, call in enumerate(answer.calls):
        item = {"kind": "tool_call", "call": f"{turn}.{step}.{index}", "tool": call.tool, "args": dict(call.args)}
        item |= {"provider_id": call.provider_id} if call.provider_id else {}
        items.append(item | ({"malformed": call.malformed} if call.malformed else {}))
    return items


def result(call: str, text: str, outcome: str = "succeeded") -> dict[str, Any]:
    return {"kind": "tool_result", "call": call, "tool": "shell", "outcome": outcome, "content": text}


class Wire:
    """Answers each request with what it is told to, and keeps what was asked."""

    def __init__(self, answer: Callable[[], httpx2.Response]) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self._handle))

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(json.loads(request.content))
        return self._answer()


def events(*data: dict[str, Any], named: bool = False) -> httpx2.Response:
    lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in data]
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content="".join([*lines, "data: [DONE]\n\n"]).encode()
    )


def openai_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test"}
    return base | {"choices": [choice]} | more


def openai_call(arguments: str) -> dict[str, Any]:
    function = {"name": "shell", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "call_abc", "type": "function", "function": function}]}


def openai(answer: Callable[[], httpx2.Response]) -> tuple[OpenAIChatModel, Wire]:
    wire = Wire(answer)
    provider = OpenAIProvider(api_key="k", base_url="http://provider.test/v1", http_client=wire.client())
    return OpenAIChatModel("gpt-test", provider=provider), wire


async def ask(model, request: ModelRequest) -> tuple[ModelAnswer | ModelFailure, list[Delta]]:
    deltas: list[Delta] = []
    return await ProviderModels(5).ask(model, request, deltas.append), deltas


async def test_openai_text_call_usage_and_deltas():
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    model, wire = openai(
        lambda: events(
            openai_chunk({"role": "assistant", "content": "Let "}),
            openai_chunk({"content": "me look."}),
            openai_chunk(openai_call('{"command": "ls"}')),
            openai_chunk({}, "tool_calls"),
            openai_chunk({}, None, choices=[], usage=usage),
        )
    )
    answer, deltas = await ask(model, asked(settings={"temperature": 0.5}))
    assert isinstance(answer, ModelAnswer)
    assert [(item.kind, item.text) for item in answer.items] == [("text", "Let me look.")]
    assert answer.calls == [ModelCall("shell", {"command": "ls"}, "call_abc")]
    assert answer.stop_reason == "tool_call"
    assert answer.usage == TokenUsage(11, 7, 4, 3)
    assert answer.response_id == "chatcmpl-1"
    assert deltas == [Delta("text", "Let "), Delta("text", "me look.")]
    sent = wire.asked[0]
    assert sent["temperature"] == 0.5
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["tools"][0]["function"]["name"] == "shell"

    # And the whole goes back, with the result of its call.
    await ask(model, asked(user("hello"), *as_items(answer), result("1.1.0", "a b")))
    _, told, said, returned = wire.asked[1]["messages"]
    assert told == {"role": "user", "content": "hello"}
    assert said["content"] == "Let me look."
    assert said["tool_calls"][0]["id"] == "call_abc"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert returned == {"role": "tool", "tool_call_id": "call_abc", "content": "a b"}


@pytest.mark.parametrize("arguments", ['{"command": "l', "nonsense", "[1, 2]", '"text"'])
async def test_arguments_that_are_no_object_are_kept_as_they_were_written(arguments):
    model, wire = openai(
        lambda: events(openai_chunk(openai_call(arguments) | {"role": "assistant"}), openai_chunk({}, "tool_calls"))
    )
    answer, _ = await ask(model, asked())
    assert isinstance(answer, ModelAnswer)
    assert answer.calls == [ModelCall("shell", {}, "call_abc", malformed=arguments)]
    await ask(model, asked(user("hello"), *as_items(answer), result("1.1.0", "no JSON", "failed")))
    assert arguments in json.loads(wire.asked[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]).values()


async def test_arguments_that_are_empty_are_an_empty_object():
    model, _ = openai(lambda: events(openai_chunk(openai_call("")), openai_chunk({}, "tool_calls")))
    answer, _ = await ask(model, asked())
    assert answer.calls == [ModelCall("shell", {}, "call_abc")]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"tool_choice": "required"}, "required"),
        ({"settings": {"tool_choice": {"type": "function", "function": {"name": "shell"}}}}, None),
        ({"tool_choice": ("shell",)}, None),
        ({"settings": {"tool_choice": "none"}}, "none"),
    ],
)
async def test_tool_choice(choice, sent):
    model, wire = openai(lambda: events(openai_chunk({"content": "x"}), openai_chunk({}, "stop")))
    answer, _ = await ask(model, asked(**choice))
    assert isinstance(answer, ModelAnswer), answer
    if sent == "none":
        assert wire.asked[0].get("tool_choice", "none") == "none"
    else:
        named = {"type": "function", "function": {"name": "shell"}}
        assert wire.asked[0]["tool_choice"] == (sent or named)


@pytest.mark.parametrize(
    ("status", "retriable"),
    [
        *((status, False) for status in (400, 401, 404, 422)),
        *((status, True) for status in (408, 409, 425, 429, 500, 502, 503, 529)),
    ],
)
async def test_http_errors(status, retriable):
    model, wire = openai(
        lambda: httpx2.Response(status, headers={"retry-after": "7"}, json={"error": {"message": "it is so"}})
    )
    failure, _ = await ask(model, asked())
    assert isinstance(failure, ModelFailure)
    assert failure.retriable is retriable
    assert failure.retry_after_seconds == (7 if retriable else None)
    assert "it is so" in failure.error
    assert len(wire.asked) == 1, "the SDK must not retry by itself"


async def test_an_exhausted_quota_is_final():
    error = {"message": "pay", "code": "insufficient_quota", "type": "insufficient_quota"}
    model, _ = openai(lambda: httpx2.Response(429, json={"error": error}))
    failure, _ = await ask(model, asked())
    assert failure.retriable is False


async def test_connection_errors_are_retriable():
    def refuse() -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    model, _ = openai(refuse)
    failure, _ = await ask(model, asked())
    assert failure.retriable is True


async def test_an_error_within_the_stream_is_a_failure():
    model, _ = openai(lambda: events(openai_chunk({"content": "x"}), {"error": {"message": "broke", "code": 500}}))
    failure, deltas = await ask(model, asked())
    assert isinstance(failure, ModelFailure)
    assert deltas == [Delta("text", "x")]


async def test_what_is_no_answer_is_a_failure():
    for response in (
        httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: {nonsense\n\n"),
        httpx2.Response(200, headers={"content-type": "text/html"}, content=b"<p>Hello</p>"),
    ):
        model, _ = openai(lambda response=response: response)
        failure, _ = await ask(model, asked())
        assert isinstance(failure, ModelFailure), failure
        assert failure.error


def anthropic(answer: Callable[[], httpx2.Response]) -> tuple[AnthropicModel, Wire]:
    wire = Wire(answer)
    provider = AnthropicProvider(api_key="k", http_client=wire.client())
    return AnthropicModel("claude-test", provider=provider), wire


def anthropic_answer() -> httpx2.Response:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }

    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    return events(
        {"type": "message_start", "message": message},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "I think."},
            {"type": "signature_delta", "signature": "SIGNED"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
        *block(
            2,
            {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"command": '},
            {"type": "input_json_delta", "partial_json": '"ls"}'},
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 20},
        },
        {"type": "message_stop"},
        named=True,
    )


async def test_anthropic_reasoning_with_its_signature_survives_the_round_trip():
    model, wire = anthropic(anthropic_answer)
    answer, deltas = await ask(model, asked())
    assert isinstance(answer, ModelAnswer), answer
    assert [(item.kind, item.text) for item in answer.items] == [("reasoning", "I think."), ("text", "I look.")]
    assert answer.calls == [ModelCall("shell", {"command": "ls"}, "toolu_1")]
    assert answer.stop_reason == "tool_call"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (9, 20)
    assert deltas == [Delta("reasoning", "I think."), Delta("text", "I look.")]

    await ask(model, asked(user("hello"), *as_items(answer), result("1.1.0", "a b"), user("and now?")))
    _, said, told = wire.asked[1]["messages"]
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use"]
    assert said["content"][0]["signature"] == "SIGNED"
    assert said["content"][2]["id"] == "toolu_1"
    assert [block["type"] for block in told["content"]] == ["tool_result", "text"]


# Without a wire


async def test_a_model_that_takes_too_long_is_asked_again():
    async def never(_messages, _info):
        yield "x"
        await asyncio.sleep(60)

    deltas: list[Delta] = []
    models = ProviderModels(timeout_seconds=0.05)
    failure = await models.ask(FunctionModel(stream_function=never), asked(), deltas.append)
    assert failure == ModelFailure("The model did not answer in time.", retriable=True)


async def test_several_calls():
    async def calls(_messages, _info):
        yield {0: DeltaToolCall("shell", '{"command":"a"}', tool_call_id="x")}
        yield {1: DeltaToolCall("shell", '{"command":"b"}', tool_call_id="y")}

    answer, _ = await ask(FunctionModel(stream_function=calls), asked())
    assert [(call.args, call.provider_id) for call in answer.calls] == [
        ({"command": "a"}, "x"),
        ({"command": "b"}, "y"),
    ]
    assert answer.stop_reason == "tool_call"


@pytest.mark.parametrize("name", ["nobody:nothing", "", "openai:gpt-5"])
async def test_a_model_that_cannot_be_used_is_a_final_failure(name, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    request = ModelRequest(model=name, settings={}, instructions=None, items=[user("x")])
    failure = await ProviderModels(timeout_seconds=5).answer(request, print)
    assert isinstance(failure, ModelFailure)
    assert not failure.retriable
    assert "cannot be used" in failure.error


async def test_models_are_made_once_and_not_kept_for_ever(monkeypatch):
    from services.runtime.models import provider

    monkeypatch.setattr(provider, "MODELS_KEPT_MAX", 1)
    models = ProviderModels(timeout_seconds=5)
    request = ModelRequest(model="test", settings={}, instructions=None, items=[user("x")])
    assert isinstance(await models.answer(request, print), ModelAnswer)
    made = models._models["test"]
    assert isinstance(await models.answer(request, print), ModelAnswer)
    assert models._models["test"] is made
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    models._model("openai-chat:gpt-5")
    assert list(models._models) == ["openai-chat:gpt-5"]


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (exceptions.ModelTimeoutError("m", "slow"), True),
        (exceptions.ModelRequestTimeout("m", 5), True),
        (exceptions.ModelUnavailableError("m", "away"), True),
        (exceptions.ModelRequestRejectedError("m", "bad"), False),
        (exceptions.ContentFilterError("no"), False),
        (exceptions.UserError("wrong"), False),
        (exceptions.UnexpectedModelBehavior("odd"), True),
        (ConnectionResetError("reset"), True),
        (httpx2.ReadError("cut"), True),
        (KeyError("a bug"), False),
    ],
)
def test_what_passes_is_retriable(error, retriable):
    failure = failure_of(error)
    assert failure.retriable is retriable
    assert failure.error


def test_provider_ids_of_calls_and_details_survive():
    response = AiResponse(
        parts=[
            ThinkingPart("", id="rs_1", signature="enc", provider_name="openai", provider_details={"n": 1}),
            TextPart("", id="msg_0", provider_name="openai"),
            ToolCallPart("shell", {"command": "a"}, "call_1", id="fc_1", provider_name="openai"),
        ],
        provider_name="openai",
        canonical_system="azure",
    )
    answer = to_answer(response)
    assert [item.kind for item in answer.items] == ["reasoning"]
    _, rebuilt, _ = to_messages([user("x"), *as_items(answer), result("1.1.0", "r")], None)
    assert rebuilt.provider_name == "openai"
    assert rebuilt.canonical_system == "azure"
    thinking, call = rebuilt.parts
    assert (thinking.id, thinking.signature, thinking.provider_details) == ("rs_1", "enc", {"n": 1})
    assert (call.id, call.tool_call_id, call.provider_name) == ("fc_1", "call_1", "openai")


def test_calls_without_other_items_keep_their_ids_too():
    call = ToolCallPart("shell", {}, "c", provider_name="google", provider_details={"thought_signature": "s"})
    answer = to_answer(AiResponse(parts=[call], provider_name="google"))
    assert answer.items == [
        AnswerItem("reasoning", "", {"calls": {"c": {"name": "google", "details": {"thought_signature": "s"}}}})
    ]
    messages = to_messages([user("x"), *as_items(answer), result("1.1.0", "r")], None)
    (rebuilt,) = messages[1].parts
    assert rebuilt.provider_details == {"thought_signature": "s"}


def test_conversations_are_put_as_providers_demand():
    call = {"kind": "tool_call", "tool": "shell", "args": {}}
    messages = to_messages(
        [
            {"kind": "summary", "text": "before"},
            user("go"),
            {"kind": "reasoning", "text": "hm"},
            call | {"call": "1.1.0", "provider_id": "same"},
            call | {"call": "1.1.1"},
            result("1.1.1", "second"),
            {"kind": "resolution", "call": "0.1.0", "tool": "t", "outcome": "failed", "content": "it failed"},
            result("1.1.0", "first", "timed_out"),
            call | {"call": "1.2.0", "provider_id": "same"},
            user("stop"),
            {"kind": "message", "role": "assistant", "content": []},
        ],
        "Be brief.",
    )
    first, said, told, again, last = messages
    assert [part.content for part in first.parts] == ["Summary of the conversation up to here:\nbefore", "go"]
    assert [type(part) for part in said.parts] == [ThinkingPart, ToolCallPart, ToolCallPart]
    assert [type(part) for part in told.parts] == [ToolReturnPart, ToolReturnPart, UserPromptPart]
    assert [(part.tool_call_id, part.content, part.outcome) for part in told.parts[:2]] == [
        ("same", "first", "failed"),
        ("call_1_1_1", "second", "success"),
    ]
    assert "Call 0.1.0 of t is settled now: failed.\nit failed" in told.parts[2].content
    assert again.parts[0].tool_call_id == "call_1_2_0"
    assert (last.parts[0].content, last.parts[0].outcome) == (NO_RESULT, "interrupted")
    assert last.parts[1].content == "stop"
    assert all(message.instructions == "Be brief." for message in messages if isinstance(message, AiRequest))


def test_a_conversation_always_ends_with_a_request():
    (only,) = to_messages([], "Be brief.")
    assert isinstance(only, AiRequest)
    said = {"kind": "message", "role": "assistant", "content": "x"}
    assert isinstance(to_messages([user("a"), said], None)[-1], AiRequest)
