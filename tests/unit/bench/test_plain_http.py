"""The plain transport against a socket that the test plays."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from bench.plain_http import BUFFER_BYTES_MAX, PlainTransport

TIMEOUTS = {"timeout": {"connect": 1.0, "read": 0.2}}
URL = "http://threadlog.test:8080/v1/threads?limit=1"


class Socket(asyncio.Transport):
    """One connection, as the client's protocol sees it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = b""
        self.paused = False
        self.aborted = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True

    def say(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def hang_up(self) -> None:
        self.protocol.connection_lost(None)


class Network:
    def __init__(self) -> None:
        self.sockets: list[Socket] = []
        self.error: Exception | None = None
        self.addresses: list[tuple[str, int]] = []

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[Socket, asyncio.Protocol]:
        if self.error is not None:
            raise self.error
        self.addresses.append((host, port))
        protocol = factory()
        self.sockets.append(Socket(protocol))
        return self.sockets[-1], protocol


@pytest.fixture
async def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    found = Network()
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", found.create_connection)
    return found


def request(method: str = "GET", content: bytes = b"") -> httpx2.Request:
    return httpx2.Request(method, URL, content=content, headers=[(b"accept", b"*/*")], extensions=TIMEOUTS)


async def asked(transport: PlainTransport, network: Network, *answer: bytes) -> httpx2.Response:
    task = asyncio.ensure_future(transport.handle_async_request(request()))
    await asyncio.sleep(0)
    for part in answer:
        network.sockets[-1].say(part)
    return await task


async def test_a_request_goes_out_whole_and_its_answer_comes_back(network: Network) -> None:
    transport = PlainTransport()
    task = asyncio.ensure_future(transport.handle_async_request(request("POST", b'{"a":1}')))
    await asyncio.sleep(0)
    assert network.addresses == [("threadlog.test", 8080)]
    head, body = network.sockets[0].sent.split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/threads?limit=1 HTTP/1.1"
    assert {b"Host: threadlog.test:8080", b"accept: */*", b"Content-Length: 7"} <= set(lines[1:])
    assert body == b'{"a":1}'
    network.sockets[0].say(b"HTTP/1.1 202 Accepted\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}")
    response = await task
    assert (response.status_code, response.headers["retry-after"], await response.aread()) == (202, "3", b"{}")


async def test_a_connection_is_used_again_once_its_answer_was_read(network: Network) -> None:
    transport = PlainTransport()
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    for _ in range(2):
        response = await asked(transport, network, whole)
        assert await response.aread() == b"ok"
        await response.aclose()
    assert len(network.sockets) == 1
    response = await asked(transport, network, whole)  # its body is not read
    await response.aclose()
    assert network.sockets[0].aborted
    response = await asked(transport, network, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    await response.aread()
    await response.aclose()
    assert len(network.sockets) == 2
    assert network.sockets[1].aborted
    await transport.aclose()


async def test_an_idle_connection_that_the_server_closed_is_not_used(network: Network) -> None:
    transport = PlainTransport()
    response = await asked(transport, network, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    await response.aread()
    await response.aclose()
    network.sockets[0].hang_up()
    await asked(transport, network, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert len(network.sockets) == 2


async def test_a_stream_is_read_as_it_comes(network: Network) -> None:
    transport = PlainTransport()
    response = await asked(transport, network, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
    chunks = response.aiter_raw()
    assert await anext(chunks) == b"abc"
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    network.sockets[0].say(b"2\r\nde\r\n0\r\n\r\n")
    assert await waiting == b"de"
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)


async def test_a_body_that_nobody_reads_stops_the_socket(network: Network) -> None:
    transport = PlainTransport()
    size = BUFFER_BYTES_MAX + 1
    response = await asked(
        transport, network, b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (size + 1), b"x" * size
    )
    assert network.sockets[0].paused
    chunks = response.aiter_raw()
    assert len(await anext(chunks)) == size
    assert not network.sockets[0].paused


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", httpx2.ReadError),
        (b"HTTP/1.1 200", httpx2.ReadError),
        (b"SSH-2.0-OpenSSH\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 40_000, httpx2.RemoteProtocolError),
    ],
)
async def test_no_answer_is_an_error(network: Network, answer: bytes, error: type[Exception]) -> None:
    transport = PlainTransport()
    task = asyncio.ensure_future(transport.handle_async_request(request()))
    await asyncio.sleep(0)
    network.sockets[0].say(answer)
    network.sockets[0].hang_up()
    with pytest.raises(error):
        await task
    assert network.sockets[0].aborted


async def test_an_answer_that_breaks_off_is_an_error(network: Network) -> None:
    transport = PlainTransport()
    response = await asked(transport, network, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    network.sockets[0].hang_up()
    with pytest.raises(httpx2.ReadError):
        await response.aread()


async def test_silence_is_an_error(network: Network) -> None:
    transport = PlainTransport()
    with pytest.raises(httpx2.ReadTimeout):
        await asked(transport, network)
    response = await asked(transport, network, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
    with pytest.raises(httpx2.ReadTimeout):
        await response.aread()


async def test_no_connection_is_an_error(network: Network) -> None:
    transport = PlainTransport()
    network.error = ConnectionRefusedError("refused")
    with pytest.raises(httpx2.ConnectError, match="refused"):
        await transport.handle_async_request(request())
    with pytest.raises(httpx2.UnsupportedProtocol):
        await transport.handle_async_request(httpx2.Request("GET", "https://threadlog.test/"))
