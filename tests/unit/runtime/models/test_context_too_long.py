"""What providers answer where a conversation is longer than the model takes."""

from typing import Any

import httpx2
import pytest

pytest.importorskip("openai")
pytest.importorskip("anthropic")

from pydantic_ai import exceptions

from services.runtime.models.port import ModelFailure
from services.runtime.models.provider import failure_of
from tests.unit.runtime.models.test_provider import anthropic, ask, asked, events, openai, user

OPENAI = {
    "message": "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
ANTHROPIC = {"type": "invalid_request_error", "message": "prompt is too long: 200001 tokens > 200000 maximum"}
ANTHROPIC_WITH_ANSWER = {
    "type": "invalid_request_error",
    "message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
}


def refused(status: int, body: Any) -> exceptions.ModelHTTPError:
    return exceptions.ModelHTTPError(status, "m", body)


@pytest.mark.parametrize(
    "wire",
    [
        openai(lambda: httpx2.Response(400, json={"error": OPENAI})),
        openai(lambda: httpx2.Response(400, json={"error": {"message": "the request exceeds the context size"}})),
        openai(lambda: events({"error": OPENAI})),
        openai(lambda: httpx2.Response(413, text="Payload Too Large")),
        anthropic(lambda: httpx2.Response(400, json={"type": "error", "error": ANTHROPIC})),
        anthropic(lambda: httpx2.Response(400, json={"type": "error", "error": ANTHROPIC_WITH_ANSWER})),
        anthropic(lambda: httpx2.Response(413, json={"type": "error", "error": {"type": "request_too_large"}})),
    ],
)
async def test_it_is_said_so(wire: Any) -> None:
    model, _ = wire
    failure, _ = await ask(model, asked(user("x")))
    assert isinstance(failure, ModelFailure), failure
    assert (failure.too_long, failure.retriable) == (True, False)
    assert failure.error


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ModelContextWindowExceededError("m", "too long"),
        refused(
            400, {"error": {"status": "INVALID_ARGUMENT", "message": "The input token count (2) exceeds the maximum"}}
        ),
        refused(400, {"error": {"message": "File exceeds the maximum number of tokens allowed (1048576)."}}),
        refused(400, {"Error": {"Code": "ValidationException", "Message": "Input is too long for requested model."}}),
        refused(
            400, {"message": "This model's maximum prompt length is 131072 but the request contains 131073 tokens."}
        ),
        refused(422, {"message": "too many tokens: size limit exceeded by 5 tokens"}),
    ],
)
def test_other_providers_word_it_in_their_own_way(error: Exception) -> None:
    assert failure_of(error).too_long


@pytest.mark.parametrize(
    "error",
    [
        refused(429, {"message": "rate limit: 100000 tokens a minute; reduce the context size"}),
        refused(500, {"message": "the context window could not be read"}),
        refused(400, {"message": "temperature has to be at most 1"}),
        TimeoutError("context length"),
    ],
)
def test_other_failures_are_none_of_it(error: Exception) -> None:
    assert not failure_of(error).too_long
