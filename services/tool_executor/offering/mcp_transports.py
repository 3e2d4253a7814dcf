"""The two transports of the SDK, extended by what the executor must know about the other side.

Over stdio that is the process group of the server, so that it dies with the executor, and its standard error, whose
last lines are evidence when it dies. The SDK gives access to neither, so the server is started through a shell that
first prints its own pid, which stays the pid of the server.

Over HTTP it is whether a request that failed had been sent at all. A call that was not sent may be tried again; one
that was sent may have had its effect. The errors of the SDK do not make this difference.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

import httpx2
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from services.tool_executor.offering.tools_file import McpServerConfig
from services.tool_executor.workspace.process import SHELL, Warden, kill_group

NOT_SENT = -31_001
"""The request never left, or was refused before anything could run."""
NO_ANSWER = -31_002
"""The request was sent, and its outcome was not seen."""
SESSION_GONE = -31_003
"""The server does not know the session: it was restarted. The request did not run."""

STDERR_LINES_KEPT: Final = 20
STDERR_LINE_BYTES_MAX: Final = 1_000
HTTP_TIMEOUT_SECONDS: Final = 30.0
"""Limit on connecting to a server and on sending a request, each. Reading has none."""

_TELLS_ITS_PID = 'echo "$$" >&2; exec "$@"'
_SESSION_HEADER = "mcp-session-id"

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


class Watched(asyncio.Protocol):
    """The standard error of a server over stdio. Its first line is the pid, which also is its process group."""

    def __init__(self, warden: Warden) -> None:
        self._warden = warden
        self._rest = b""
        self.group: int | None = None
        self.lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Keep the last lines. A line without end must not fill the memory, so only its last part is kept."""
        *lines, self._rest = (self._rest + data)[-64 * STDERR_LINE_BYTES_MAX :].split(b"\n")
        for line in lines:
            text = line[:STDERR_LINE_BYTES_MAX].decode(errors="replace").rstrip()
            if self.group is None and text.isdecimal():
                self.group = int(text)
                self._warden.watch(self.group)
            elif text:
                self.lines.append(text)

    def connection_lost(self, _exc: Exception | None, /) -> None:
        self.ended.set()

    def alive(self) -> bool:
        """Return whether the process is there. Before its first line its pid is not known, and it counts as dead."""
        if self.group is None:
            return False
        try:
            os.kill(self.group, 0)
        except ProcessLookupError:
            return False
        return True

    def release(self) -> None:
        """Kill the server and what it started."""
        if self.group is not None:
            kill_group(self.group)
            self._warden.forget(self.group)


@asynccontextmanager
async def stdio_transport(config: McpServerConfig, warden: Warden, watched: Watched) -> AsyncGenerator[Streams]:
    """Start the server and yield its streams. The server is dead when the context ends."""
    assert config.command is not None
    await warden.ready()
    parameters = StdioServerParameters(
        command=SHELL,
        args=["-c", _TELLS_ITS_PID, "mcp-server", config.command, *config.args],
        env=config.env,
        cwd=config.cwd,
        encoding_error_handler="replace",
    )
    reading, writing = os.pipe()
    errors = os.fdopen(writing, "w")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: watched, os.fdopen(reading, "rb", 0))
    try:
        async with stdio_client(parameters, errlog=errors) as streams:
            errors.close()
            yield streams
    finally:
        errors.close()
        watched.release()
        transport.close()


@asynccontextmanager
async def http_transport(config: McpServerConfig) -> AsyncGenerator[Streams]:
    """Yield streams to a server over HTTP. Opening them does not connect yet."""
    assert config.url is not None
    # No limit on reading: an answer may stream for as long as its call may run, and the call has its own limit.
    limits = httpx2.Timeout(HTTP_TIMEOUT_SECONDS, read=None)
    async with (
        httpx2.AsyncClient(headers=config.headers, timeout=limits, transport=HonestTransport()) as client,
        streamable_http_client(config.url, http_client=client) as streams,
    ):
        yield streams


class HonestTransport(httpx2.AsyncHTTPTransport):
    """Turns failures of a POST into JSON-RPC errors that say whether it was sent.

    Each failure then ends its own call. An exception would end the session and every call in it.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await super().handle_async_request(request)
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _stand_in(request, NOT_SENT, f"it cannot be reached: {_told(error)}")
        except httpx2.TransportError as error:
            return _stand_in(request, NO_ANSWER, f"the connection broke after the request was sent: {_told(error)}")
        # The SDK understands JSON-RPC errors by itself; what it does not understand becomes one here.
        if response.status_code < httpx2.codes.BAD_REQUEST or _is_json(response):
            return response
        await response.aclose()
        status = f"it answered HTTP {response.status_code} {response.reason_phrase}".rstrip()
        if response.status_code == httpx2.codes.NOT_FOUND and _SESSION_HEADER in request.headers:
            return _stand_in(request, SESSION_GONE, "it does not know the session any more")
        # A 5xx may come from a proxy after the server has begun; a 4xx refuses the request before anything runs.
        if response.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return _stand_in(request, NO_ANSWER, status)
        return _stand_in(request, NOT_SENT, status)


def _is_json(response: httpx2.Response) -> bool:
    return cast("str", response.headers.get("content-type", "")).lower().startswith("application/json")


def _stand_in(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    """Return a response that the SDK takes for the error of this one request."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(
        httpx2.codes.SERVICE_UNAVAILABLE,
        headers={"content-type": "application/json"},
        content=json.dumps(error).encode(),
        request=request,
    )


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
