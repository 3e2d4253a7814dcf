import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import wraps
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.client.client import ClientError, ClientLimits, RefusedError, ThreadlogClient, UnreachableError
from services.client.sse import Cut, Fact, Live, SseParser, StreamError
from tests.support.simulated.virtual_time import run_virtual
from tests.unit.client.fake_server import (
    DELTA,
    Answer,
    Chunk,
    FakeServer,
    Handler,
    cut_event,
    fact_event,
    in_turn,
    json_answer,
)

LOST = httpx2.ReadError("the connection ended early")
ACCEPTED = {"thread": "t1", "events": [], "position": {"partition": 0, "offset": 1}}


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_virtual(test(**fixtures))

    return run


def client_of(handle: Handler, **options: Any) -> tuple[ThreadlogClient, FakeServer]:
    server = FakeServer(handle)
    return ThreadlogClient("http://threadlog.test/", transport=server, **options), server


async def followed(client: ThreadlogClient, count: int, after: int = 0) -> list[int | str]:
    """Seqs and kinds of live events, until there are so many."""
    seen: list[int | str] = []
    async with aclosing(client.follow("t1", after)) as events:
        async for event in events:
            seen.append(event.seq if isinstance(event, Fact) else event.kind)
            if len(seen) == count:
                return seen
    raise AssertionError(seen)


# Commands


@virtual
async def test_a_command_is_sent_with_a_key_of_its_own() -> None:
    client, server = client_of(in_turn(json_answer(ACCEPTED, 202), json_answer(ACCEPTED, 202)))
    accepted = await client.create_thread(text="hi", config={"model": "m"}, title="T", labels={"a": "b"})
    await client.submit("t1", "more", mode="steer", expected_turn=2, wait_applied=True, idempotency_key="mine")
    assert accepted.thread == "t1"
    first, second = server.requests
    assert (first.method, str(first.url)) == ("POST", "http://threadlog.test/v1/threads")
    assert orjson.loads(first.content) == {
        "input": {"text": "hi"},
        "config": {"model": "m"},
        "title": "T",
        "labels": {"a": "b"},
    }
    assert len(first.headers["idempotency-key"]) == 36
    assert first.headers["x-threadlog-tenant"] == "dev"
    assert str(second.url) == "http://threadlog.test/v1/threads/t1/inputs?wait=applied"
    assert second.headers["idempotency-key"] == "mine"
    assert orjson.loads(second.content) == {"text": "more", "mode": "steer", "expected_turn": 2}
    assert server.open_bodies == 0


@virtual
async def test_what_may_have_arrived_is_sent_again_with_the_same_key() -> None:
    busy = json_answer({"title": "queue full"}, 429, retry_after="5")
    client, server = client_of(in_turn(LOST, busy, json_answer({}, 503), json_answer(ACCEPTED, 202)), token="tl_x")
    begun = asyncio.get_running_loop().time()
    await client.cancel("t/1", 3, note="enough", discard=True)
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer tl_x"}
    assert {str(request.url) for request in server.requests} == {
        "http://threadlog.test/v1/threads/t%2F1/turns/3/cancel"
    }
    assert asyncio.get_running_loop().time() - begun > 5


@virtual
async def test_without_a_key_only_what_cannot_have_arrived_is_sent_again() -> None:
    client, server = client_of(in_turn(httpx2.ConnectError("refused"), json_answer(ACCEPTED, 202), LOST), keyed=False)
    await client.create_thread()
    with pytest.raises(UnreachableError, match="may have arrived"):
        await client.create_thread()
    assert all("idempotency-key" not in request.headers for request in server.requests)


@virtual
@pytest.mark.parametrize(
    ("status", "problem", "is_sent_again"),
    [
        (429, "too-many-appends", True),
        (503, "overloaded", True),
        (503, "log-unavailable", False),
        (503, "stopping", False),
        (504, None, False),
    ],
)
async def test_without_a_key_a_command_that_may_be_done_is_not_sent_again(
    status: int, problem: str | None, *, is_sent_again: bool
) -> None:
    busy = Answer(status, [b"<html>"]) if problem is None else json_answer({"type": f"https://x/{problem}"}, status)
    client, server = client_of(in_turn(busy, json_answer(ACCEPTED, 202)), keyed=False)
    if is_sent_again:
        await client.create_thread()
    else:
        with pytest.raises(UnreachableError, match="may have arrived"):
            await client.create_thread()
    assert len(server.requests) == 1 + is_sent_again


@virtual
async def test_a_refusal_is_an_error_with_its_problem() -> None:
    problem = {"type": "https://threadlog.dev/problems/thread-not-found", "detail": "no such thread"}
    client, _ = client_of(in_turn(json_answer(problem, 404), Answer(500, [b"<html>"]), json_answer([], 400)))
    with pytest.raises(RefusedError, match="404 thread-not-found: no such thread") as caught:
        await client.thread("t1")
    assert (caught.value.status, caught.value.problem) == (404, "thread-not-found")
    with pytest.raises(RefusedError, match="500 : <html>"):
        await client.thread("t1")
    with pytest.raises(RefusedError, match="400"):
        await client.threads()


@virtual
async def test_a_service_that_stays_away_is_given_up() -> None:
    def away(_request: httpx2.Request) -> Answer:
        raise httpx2.ConnectError("refused")

    client, server = client_of(away, limits=ClientLimits(give_up_seconds=20))
    with pytest.raises(UnreachableError):
        await client.thread("t1")
    assert 10 < len(server.requests) < 40
    with pytest.raises(UnreachableError):
        await followed(client, 1)
    await client.aclose()
    assert server.closed


@virtual
async def test_the_error_names_what_has_no_text_of_its_own() -> None:
    def silent(_request: httpx2.Request) -> Answer:
        raise httpx2.ReadTimeout("")

    client, _ = client_of(silent, limits=ClientLimits(give_up_seconds=5))
    with pytest.raises(UnreachableError, match="ReadTimeout"):
        await client.thread("t1")


@pytest.mark.parametrize("address", ["threadlog.test", "htp://threadlog.test"])
@virtual
async def test_an_address_that_is_not_http_is_refused_at_once(address: str) -> None:
    async with ThreadlogClient(address) as client:
        for asking in (client.thread("t1"), followed(client, 1)):
            with pytest.raises(ClientError, match="must begin with http") as refused:
                await asking
            assert not isinstance(refused.value, UnreachableError)


@virtual
async def test_a_header_that_is_not_http_is_refused_at_once_and_is_not_shown() -> None:
    def illegal(request: httpx2.Request) -> Answer:
        raise httpx2.LocalProtocolError(f"Illegal header value {request.headers['authorization']}")

    client, server = client_of(illegal, token="tlk_a\n")
    for asking in (client.thread("t1"), followed(client, 1)):
        with pytest.raises(ClientError, match="not valid in HTTP") as refused:
            await asking
        assert not isinstance(refused.value, UnreachableError)
        assert refused.value.__suppress_context__
    assert len(server.requests) == 2


@virtual
async def test_reads_ask_for_json() -> None:
    client, server = client_of(lambda _: json_answer({"data": []}))
    async with client:
        await client.threads(limit=2, cursor=None)
        await client.turns("t1")
        await client.inputs("t1")
        await client.items("t1", at_least="0:5")
        await client.tool_calls("t1")
        await client.events("t1", after=3)
        await client.approvals(thread="t1", limit=None)
        await client.unknown_calls()
    paths = [str(request.url).removeprefix("http://threadlog.test/v1") for request in server.requests]
    assert paths == [
        "/threads?limit=2",
        "/threads/t1/turns",
        "/threads/t1/inputs",
        "/threads/t1/items?at_least=0%3A5",
        "/threads/t1/tool-calls",
        "/threads/t1/events?after=3",
        "/approvals?thread=t1",
        "/unknown-calls",
    ]
    assert {request.headers["accept"] for request in server.requests} == {"application/json"}


# Following


@virtual
async def test_follow_goes_on_after_its_cursor_whatever_ends_the_stream() -> None:
    client, server = client_of(
        in_turn(
            Answer(200, [fact_event(1) + DELTA, fact_event(2)]),
            LOST,
            json_answer({}, 503),
            Answer(200, [fact_event(3)[:20], fact_event(3)[20:] + b":\n\n" + cut_event(3)]),
            Answer(200, [fact_event(4), LOST]),
            Answer(200, [fact_event(5)]),
        )
    )
    assert await followed(client, 6) == [1, "delta", 2, 3, 4, 5]
    cursors = [parse_qs(urlsplit(str(request.url)).query)["after"] for request in server.requests]
    assert cursors == [["0"], ["2"], ["2"], ["2"], ["3"], ["4"]]
    assert server.open_bodies == 0


@virtual
async def test_follow_ends_with_the_turn_when_asked() -> None:
    ends = fact_event(1, "turn.ended", "superseded") + fact_event(2, "turn.ended")
    client, server = client_of(in_turn(Answer(200, [ends])))
    async with aclosing(client.follow("t1", until_turn_end=True)) as events:
        seen = [event async for event in events]
    assert [event.seq for event in seen if isinstance(event, Fact)] == [1, 2]
    assert str(server.requests[0].url).endswith("/events?after=0&until=turn_end")


@virtual
async def test_follow_does_not_come_back_to_what_is_refused() -> None:
    client, _ = client_of(in_turn(json_answer({"type": "x/thread-not-found"}, 404)))
    with pytest.raises(RefusedError):
        await followed(client, 1)


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(1, 30))
def test_follow_yields_each_seq_once_in_order(seed: int, after: int, last: int) -> None:
    """The server repeats, leaves out, breaks off in the middle of an event, is away."""
    random = Random(seed)

    def handle(request: httpx2.Request) -> Answer:
        fate = random.random()
        if fate < 0.1:
            raise random.choice([LOST, httpx2.ConnectError("refused"), httpx2.ReadTimeout("silence")])
        if fate < 0.2:
            return json_answer({}, random.choice([429, 502, 503]))
        cursor = int(parse_qs(urlsplit(str(request.url)).query)["after"][0])
        first = max(1, cursor + 1 - random.choice([0, 0, 0, 2]) + random.choice([0, 0, 0, 0, 1]))
        body = b""
        for seq in range(first, last + 1):
            body += fact_event(seq) + random.choice([b"", DELTA, b":\n\n"])
            if random.random() < 0.05:
                body += fact_event(seq + 2)
        ends: list[Chunk] = random.choice([[], [LOST], [cut_event(cursor)]])
        if ends != [cut_event(cursor)]:
            body = body[: random.randint(0, len(body) + 200)]
        chunks: list[Chunk] = []
        while body:
            size = random.randint(1, 200)
            chunks.append(body[:size])
            body = body[size:]
        return Answer(200, [*chunks, *ends])

    async def main() -> None:
        client, _ = client_of(handle)
        seqs: list[int] = []
        async with aclosing(client.follow("t1", after)) as events:
            while after + len(seqs) < last:
                event = await anext(events)
                if isinstance(event, Fact):
                    assert event.body["data"] == {"n": event.seq}
                    seqs.append(event.seq)
        assert seqs == list(range(after + 1, last + 1))

    run_virtual(main())


# The parser


@given(st.lists(st.integers(1, 40)))
def test_events_are_found_however_they_are_cut(sizes: list[int]) -> None:
    stream = b":\n\n" + fact_event(1) + DELTA + b'event: tool_output\ndata: {"call":"1.1.0"}\n\n' + cut_event(1)
    stream += b"event: later\ndata: {}\n\n" + fact_event(2, "turn.ended")
    parser, found = SseParser(), []
    for size in sizes:
        found += parser.feed(stream[:size])
        stream = stream[size:]
    found += parser.feed(stream)
    assert [type(item) for item in found] == [Fact, Live, Live, Cut, Fact]
    assert (found[-1].kind, found[-1].applied, found[-1].data) == ("turn.ended", True, {"n": 2})
    assert found[3] == Cut(1, "slow")
    assert found[1].data == {"text": "x"}


def test_a_fact_without_data_has_none() -> None:
    assert Fact.of({"seq": 3, "type": "x", "effect": "rejected", "data": None}).data == {}


@pytest.mark.parametrize("stream", [b"id: x\nevent: y\ndata: {}\n\n", b"x" * 17 * 1_048_576])
def test_what_is_no_stream_of_ours_is_an_error(stream: bytes) -> None:
    with pytest.raises(StreamError):
        list(SseParser().feed(stream))
