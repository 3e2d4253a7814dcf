"""What a client gets when its request is cut off from inside: the process ends, or something breaks."""

import asyncio

import orjson
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingest.app import Gate
from services.ingest.metrics import IngestMetrics

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/v1/threads", "headers": []}
UNDER_WAY = "threadlog_ingest_requests_under_way"


async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.Event().wait()


async def half(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.Event().wait()


async def cut_off(app: ASGIApp) -> tuple[list[Message], "asyncio.Task[None]", float | None]:
    registry = CollectorRegistry()
    gate = Gate(app, 10, IngestMetrics.build(registry))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody asks for the body")

    serving = asyncio.create_task(gate(SCOPE, receive, send))
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    return sent, serving, registry.get_sample_value(UNDER_WAY)


async def test_a_request_that_is_cut_off_is_told_to_come_again() -> None:
    sent, serving, under_way = await cut_off(never)
    start, body = sent
    assert start["status"] == 503
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"1"
    assert headers[b"connection"] == b"close"
    assert orjson.loads(body["body"])["type"].endswith("/stopping")
    assert not serving.cancelled()
    assert under_way == 0


async def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    sent, serving, under_way = await cut_off(half)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert serving.cancelled()
    assert under_way == 0
