"""HTTP without TLS is cheap here: this is httptools on asyncio, as a transport of httpx2.

For the bench alone: it shares its cores with the services and must not be most of what it measures. One submit and one
stream take 3.0 ms of CPU with AsyncClient, 2.4 with its transport alone and 0.9 with this one. It has no TLS, proxy,
redirect or pipelining.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final, cast

import httptools
import httpx2

IDLE_CONNECTIONS_MAX: Final = 256
IDLE_SECONDS_MAX: Final = 15.0
"""Well below the server's keep-alive, so that it does not close a connection that is about to be used."""
BUFFER_BYTES_MAX: Final = 262_144
"""Bytes of a body that nobody reads: beyond them, the socket is not read either."""
HEADER_BYTES_MAX: Final = 65_536


class PlainTransport(httpx2.AsyncBaseTransport):
    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[tuple[_Connection, float]]] = {}
        self._loop = asyncio.get_running_loop()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        timeouts: Mapping[str, float | None] = request.extensions.get("timeout", {})
        connection = await self._connection(request.url, timeouts.get("connect"))
        try:
            connection.send(request)
            async with asyncio.timeout(timeouts.get("read")):
                status, headers = await connection.head()
        except TimeoutError:
            connection.abort()
            raise httpx2.ReadTimeout("the server did not answer in time", request=request) from None
        except BaseException:
            connection.abort()
            raise
        stream = _Body(self, connection, request, timeouts.get("read"))
        return httpx2.Response(status, headers=headers, stream=stream, request=request)

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection, _ in connections:
                connection.abort()
        self._idle.clear()

    async def _connection(self, url: httpx2.URL, connect_seconds: float | None) -> "_Connection":
        if url.scheme != "http":
            raise httpx2.UnsupportedProtocol(f"{url.scheme}:// needs another transport")
        address = (url.host, url.port or 80)
        idle = self._idle.get(address, [])
        now = self._loop.time()
        while idle:
            connection, since = idle.pop()
            if not connection.is_closed and now - since < IDLE_SECONDS_MAX:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(connect_seconds):
                _, connection = await self._loop.create_connection(lambda: _Connection(address, self._loop), *address)
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"{address[0]}:{address[1]} did not answer in time") from None
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        return connection

    def done(self, connection: "_Connection") -> None:
        """The response was read, or will not be."""
        if not connection.is_reusable:
            connection.abort()
            return
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append((connection, self._loop.time()))
        else:
            connection.abort()


class _Body(httpx2.AsyncByteStream):
    def __init__(
        self, transport: PlainTransport, connection: "_Connection", request: httpx2.Request, read_seconds: float | None
    ) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._request = request
        self._read_seconds = read_seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        while connection is not None:
            chunk = connection.take()
            if chunk is None:
                try:
                    async with asyncio.timeout(self._read_seconds):
                        chunk = await connection.chunk()
                except TimeoutError:
                    raise httpx2.ReadTimeout("nothing came for too long", request=self._request) from None
            if not chunk:
                return
            yield chunk

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.done(connection)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, address: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.is_closed = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_complete = True
        self._is_kept_alive = False
        self._is_paused = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._chunks: deque[bytes] = deque()
        self._chunk_bytes = 0
        self._head: asyncio.Future[None] | None = None
        self._more: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_reusable(self) -> bool:
        return self._is_complete and self._is_kept_alive and not self.is_closed and not self._chunks

    def send(self, request: httpx2.Request) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._header_bytes, self._is_complete = [], 0, False
        self._chunks.clear()
        self._chunk_bytes = 0
        self._head = self._loop.create_future()
        head = [f"{request.method} {request.url.raw_path.decode('ascii')} HTTP/1.1\r\n".encode("ascii")]
        head += [b"".join((name, b": ", value, b"\r\n")) for name, value in request.headers.raw]
        self._writer().write(b"".join((*head, b"\r\n", request.content)))

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        assert self._head is not None, "a request was sent"
        await self._head
        return self._parser.get_status_code(), self._headers

    def take(self) -> bytes | None:
        """What has come; empty at the body's end, None where more has to come first."""
        if self._chunks:
            body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks.clear()
            self._chunk_bytes = 0
            if self._is_paused and not self.is_closed:
                self._is_paused = False
                self._writer().resume_reading()
            return body
        if self._is_complete:
            return b""
        if self._error is not None:
            raise self._error
        return None

    async def chunk(self) -> bytes:
        while True:
            chunk = self.take()
            if chunk is not None:
                return chunk
            self._more = self._loop.create_future()
            await self._more

    def abort(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx2.RemoteProtocolError(f"not HTTP/1.1: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._fail(httpx2.ReadError(f"the connection ended early: {exc or 'closed by the server'}"))

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX:
            raise httpx2.RemoteProtocolError("the headers are too large")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._chunk_bytes += len(body)
        if self._chunk_bytes > BUFFER_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._writer().pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_kept_alive = self._parser.should_keep_alive()
        self._wake()

    def _fail(self, error: Exception) -> None:
        if self._is_complete:
            return
        self._error = error
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # counts as looked at, whoever was waiting
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _writer(self) -> asyncio.Transport:
        if self._transport is None or self.is_closed:
            raise httpx2.ReadError("the connection is closed")
        return self._transport
