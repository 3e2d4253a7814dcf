"""/livez, /readyz and /metrics on a port of their own, so that they answer while the service's own port is busy.

They run in the event loop of the service on purpose: a loop that is blocked does not answer, and that is what a kubelet
should notice. Just enough HTTP for a kubelet, Prometheus and curl: GET and HEAD, one answer per connection.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, disable_created_metrics, generate_latest

REQUEST_BYTES_MAX: Final = 8_192
"""Size of a request's head. A probe has some hundred bytes."""
REQUEST_SECONDS: Final = 5.0
"""How long a client may take for one request. A client that says nothing must not keep its connection."""
TEXT: Final = "text/plain; charset=utf-8"

Check = Callable[[], str | None]
"""Returns None if all is well, else the reason in one line."""

logger = structlog.get_logger()


class Probes:
    """The server of the probes; `Probes.start` makes it.

    Not live means that the process should be killed and started again. Not ready means that it should get no work yet.
    """

    def __init__(self, registry: CollectorRegistry, not_ready: Check, not_live: Check) -> None:
        self._registry = registry
        self._not_ready = not_ready
        self._not_live = not_live
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(
        cls, host: str, port: int, registry: CollectorRegistry, *, not_ready: Check, not_live: Check = lambda: None
    ) -> Self:
        """Listen on `host` and `port`. Port 0 takes a free one, which `port` returns."""
        # Without this, the library adds a second series to each counter and histogram, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own
        probes = cls(registry, not_ready, not_live)
        probes._server = await asyncio.start_server(probes._serve, host, port, limit=REQUEST_BYTES_MAX)
        logger.info("probes_started", host=host, port=probes.port)
        return probes

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that is gone, or that speaks no HTTP, can be told nothing
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        content_type = TEXT
        if method not in {b"GET", b"HEAD"}:
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n"
        elif path == b"/livez":
            status, body = _probe(self._not_live)
        elif path == b"/readyz":
            status, body = _probe(self._not_ready)
        elif path == b"/metrics":
            status, body, content_type = HTTPStatus.OK, generate_latest(self._registry), CONTENT_TYPE_LATEST
        else:
            status, body = HTTPStatus.NOT_FOUND, b"try /livez, /readyz or /metrics\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"content-type: {content_type}",
            f"content-length: {len(body)}",
            "connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body if method != b"HEAD" else b"")


def _probe(check: Check) -> tuple[HTTPStatus, bytes]:
    reason = check()
    if reason is None:
        return HTTPStatus.OK, b"ok\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode()
