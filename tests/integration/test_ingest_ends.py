"""What a client sees of an ingest process that ends while its request is under way, through a real HTTP server."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import orjson
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from services.client.client import ClientLimits, ThreadlogClient, UnreachableError
from services.ingest.app import Gate
from services.ingest.metrics import IngestMetrics

LIMITS = ClientLimits(give_up_seconds=20)


class Held:
    """The first request is never answered, later ones are."""

    def __init__(self) -> None:
        self.requests = 0
        self.is_held = asyncio.Event()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.requests += 1
        if self.requests == 1:
            self.is_held.set()
            await asyncio.Event().wait()
        body = orjson.dumps({"thread": "t1"})
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, loop="none", http="httptools", ws="none", lifespan="off", log_config=None)
        )
        serving = asyncio.create_task(server._serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
        finally:
            server.should_exit = True
            await serving


def cancel_requests(server: uvicorn.Server) -> None:
    """As the loop does at its end, and the server once its grace time is over."""
    for task in server.server_state.tasks:
        task.cancel()


async def test_a_command_that_the_end_cuts_off_is_sent_again() -> None:
    held = Held()
    async with (
        served(Gate(held, 10, IngestMetrics.build(CollectorRegistry()))) as (url, server),
        ThreadlogClient(url, limits=LIMITS) as client,
    ):
        asking = asyncio.create_task(client.create_thread(text="hi"))
        await held.is_held.wait()
        cancel_requests(server)
        assert (await asking).thread == "t1"
    assert held.requests == 2


async def test_without_a_key_it_is_said_that_it_may_have_arrived() -> None:
    held = Held()
    async with (
        served(Gate(held, 10, IngestMetrics.build(CollectorRegistry()))) as (url, server),
        ThreadlogClient(url, keyed=False, limits=LIMITS) as client,
    ):
        asking = asyncio.create_task(client.create_thread(text="hi"))
        await held.is_held.wait()
        cancel_requests(server)
        with pytest.raises(UnreachableError, match=r"503: .*stopping.*It may have arrived"):
            await asking
    assert held.requests == 1
