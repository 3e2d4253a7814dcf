import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from starlette.types import Message

from services.ingest.http.body import checked_key, is_declared_larger, parse, read_body
from services.ingest.http.problems import (
    INVALID_REQUEST,
    MALFORMED_JSON,
    MALFORMED_KEY,
    TOO_LARGE,
    UNSTORABLE,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemError,
    ProblemType,
)
from services.ingest.http.requests import CancelTurn, CreateThread, PatchThread, PostResult, SubmitInput


def problem_of(raw: bytes, model: type = SubmitInput) -> Problem:
    with pytest.raises(ProblemError) as raised:
        parse(raw, model)
    return raised.value.problem


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", MALFORMED_JSON),
        (b"{", MALFORMED_JSON),
        (b"text=hello", MALFORMED_JSON),
        (b'{"text": "a\x00b"}', MALFORMED_JSON),
        (b'{"text": "\xed\xa0\x80"}', MALFORMED_JSON),
        (b'{"text": "\xff"}', MALFORMED_JSON),
        (b'{"outcome": "failed", "result": NaN}', MALFORMED_JSON),
        (b'{"outcome": "failed", "result": Infinity}', MALFORMED_JSON),
        (b"[" * 100_000 + b"1e9" + b"]" * 100_000, MALFORMED_JSON),
        (b'{"text": "a\\u0000b"}', UNSTORABLE),
        (b'{"text": "\\ud800"}', UNSTORABLE),
        (b'{"text": "a", "\\udfff": 1}', UNSTORABLE),
        (b'{"outcome": "failed", "result": 9007199254740993}', UNSTORABLE),
        (b'{"outcome": "failed", "result": -123456789012345678901234567890}', UNSTORABLE),
        (b'{"outcome": "failed", "result": 1e999}', UNSTORABLE),
        (b"[]", INVALID_REQUEST),
        (b"null", INVALID_REQUEST),
        (b'{"text": "a", "txet": "b"}', INVALID_REQUEST),
        (b'{"text": 1}', INVALID_REQUEST),
        (b'{"text": ""}', INVALID_REQUEST),
        (b"{}", INVALID_REQUEST),
        (b'{"text": "a", "items": [{"type": "text", "text": "b"}]}', INVALID_REQUEST),
        (b'{"items": []}', INVALID_REQUEST),
        (b'{"items": [{"type": "image", "text": "b"}]}', INVALID_REQUEST),
        (b'{"text": "a", "mode": "later"}', INVALID_REQUEST),
        (b'{"text": "a", "expected_turn": 0}', INVALID_REQUEST),
        (b'{"text": "a", "expected_turn": "1"}', INVALID_REQUEST),
    ],
)
def test_bad_bodies(raw: bytes, problem: ProblemType) -> None:
    model = PostResult if b"outcome" in raw else SubmitInput
    assert problem_of(raw, model).type is problem


@pytest.mark.parametrize(
    "result",
    ["\U0001f600", "NaN is a word", "1234567890123456789", 9007199254740991, -9007199254740991, 1.5e300, "5e3"],
)
def test_what_only_looks_suspicious_passes(result: object) -> None:
    raw = json.dumps({"outcome": "succeeded", "result": result}).encode()  # escapes, and surrogates in pairs
    assert parse(raw, PostResult).result == result


def test_a_problem_names_the_places() -> None:
    problem = problem_of(b'{"title": 1, "labels": {"a": 2}, "colour": "red"}', CreateThread)
    assert problem.more == {
        "errors": [
            {"place": "title", "detail": "Input should be a valid string"},
            {"place": "labels.a", "detail": "Input should be a valid string"},
            {"place": "colour", "detail": "Extra inputs are not permitted"},
        ]
    }
    assert problem.detail == "title: Input should be a valid string."


def test_null_is_not_the_same_as_absent() -> None:
    assert parse(b'{"title": null}', PatchThread).model_fields_set == {"title"}


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 201, "a\x00"])
def test_a_key_has_to_be_visible_ascii(key: str) -> None:
    with pytest.raises(ProblemError) as raised:
        checked_key(key)
    assert raised.value.problem.type is MALFORMED_KEY
    assert checked_key("x" * 200) == "x" * 200
    assert checked_key(None) is None


# Reading


def request_of(chunks: AsyncIterator[Message], **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, chunks.__anext__)


async def chunked(*chunks: bytes) -> AsyncIterator[Message]:
    for number, chunk in enumerate(chunks, 1):
        yield {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
    raise AssertionError("read on after the end")


async def refusal(request: Request, *, bytes_max: int = 30, timeout_seconds: float = 5) -> ProblemType:
    with pytest.raises(ProblemError) as raised:
        await read_body(request, SubmitInput, bytes_max=bytes_max, timeout_seconds=timeout_seconds)
    return raised.value.problem.type


async def test_a_body_may_come_in_pieces() -> None:
    request = request_of(chunked(b'{"te', b'xt": "hi"}'), content_type="application/json; charset=utf-8")
    assert (await read_body(request, SubmitInput, bytes_max=30, timeout_seconds=5)).text == "hi"


async def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    async def never() -> AsyncIterator[Message]:
        raise AssertionError("was read")
        yield {}

    request = request_of(never(), content_type="application/json", content_length="31")
    assert await refusal(request) is TOO_LARGE


async def test_an_undeclared_length_is_cut_at_the_limit() -> None:
    async def endless() -> AsyncIterator[Message]:
        for _ in range(10):
            yield {"type": "http.request", "body": b"x" * 10, "more_body": True}
        raise AssertionError("read far beyond the limit")

    assert await refusal(request_of(endless(), content_type="application/json")) is TOO_LARGE


async def test_a_slow_client_is_not_waited_for() -> None:
    async def slow() -> AsyncIterator[Message]:
        yield {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.sleep(60)

    request = request_of(slow(), content_type="application/json")
    assert await refusal(request, timeout_seconds=0.01) is MALFORMED_JSON


async def test_a_client_may_leave() -> None:
    async def leaves() -> AsyncIterator[Message]:
        yield {"type": "http.request", "body": b"{", "more_body": True}
        yield {"type": "http.disconnect"}

    assert await refusal(request_of(leaves(), content_type="application/json")) is MALFORMED_JSON


@pytest.mark.parametrize("headers", [{}, {"content_type": "text/plain"}, {"content_type": "application/x-json-no"}])
async def test_a_body_has_to_be_declared_as_json(headers: dict[str, str]) -> None:
    assert await refusal(request_of(chunked(b'{"text": "hi"}'), **headers)) is UNSUPPORTED_MEDIA_TYPE


async def test_an_optional_body_may_be_missing() -> None:
    body = await read_body(request_of(chunked(b"")), CancelTurn, bytes_max=30, timeout_seconds=5, optional=True)
    assert body == CancelTurn()


@pytest.mark.parametrize(
    ("declared", "is_larger"),
    [("100", False), ("101", True), ("0" * 5_000 + "100", False), ("9" * 5_000, True), ("", False), ("-1", False)],
)
def test_a_length_is_declared_larger_however_many_digits_it_has(declared: str, is_larger: bool) -> None:
    request = Request({"type": "http", "headers": [(b"content-length", declared.encode())]})
    assert is_declared_larger(request, 100) is is_larger
