"""Uploads and downloads: how many may be under way, and how long a client may take.

The artifact store writes an upload to a temporary file first, so these limits also bound the disk that clients can
take.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.chassis.artifacts.store import ArtifactError
from services.ingest.http.problems import MALFORMED_BODY, TOO_MANY_TRANSFERS, Problem, ProblemError
from services.ingest.metrics import IngestMetrics

CHUNK_SECONDS_MAX: Final = 30.0
"""How long one piece of a body may take, in either direction. A slower client holds a place and gives nothing for it.
"""
UPLOAD_SECONDS_MAX: Final = 3_600.0
"""How long a whole upload may take: the largest artifact over a slow line."""


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """How many transfers may be under way, and how slow they may be."""

    at_once_max: int
    """Uploads and downloads of all tenants at once."""
    per_tenant_max: int
    """Uploads and downloads of one tenant at once."""
    chunk_seconds: float = CHUNK_SECONDS_MAX
    seconds: float = UPLOAD_SECONDS_MAX


class Transfers:
    """Counts the transfers of this process."""

    def __init__(self, limits: TransferLimits, metrics: IngestMetrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self._under_way: Counter[str] = Counter()

    @contextlib.contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """Count a transfer while it is under way. Raises ProblemError (too-many-transfers)."""
        if self._under_way[tenant] >= self.limits.per_tenant_max:
            raise ProblemError(
                Problem(
                    TOO_MANY_TRANSFERS,
                    f"{self.limits.per_tenant_max} transfers of this tenant are under way. Try again later.",
                )
            )
        if self._under_way.total() >= self.limits.at_once_max:
            raise ProblemError(
                Problem(TOO_MANY_TRANSFERS, f"{self.limits.at_once_max} transfers are under way. Try again later.")
            )
        self._under_way[tenant] += 1
        try:
            yield
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]

    async def chunks(self, request: Request) -> AsyncIterator[bytes]:
        """Give the pieces of an upload as they come. Raises ProblemError (malformed-body) if the client leaves or
        stalls.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.seconds
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + self.limits.chunk_seconds)):
                    message = await request.receive()
            except TimeoutError:
                raise ProblemError(Problem(MALFORMED_BODY, "The body did not arrive in time.")) from None
            if message["type"] == "http.disconnect":
                raise ProblemError(Problem(MALFORMED_BODY, "The client left before the body had arrived."))
            if chunk := message.get("body", b""):
                self.metrics.artifact_bytes.labels("up").inc(len(chunk))
                yield chunk
            if not message.get("more_body", False):
                return


class Download(Response):
    """The pieces of an artifact as they come. If the store fails in the middle, the connection breaks off.

    The status has been sent by then, and only a body shorter than its length tells the client that something is
    missing.
    """

    def __init__(
        self, pieces: AsyncIterator[bytes], transfers: Transfers, tenant: str, status: int, headers: Mapping[str, str]
    ) -> None:
        """`headers` include the length of the whole body."""
        super().__init__(None, status, headers)
        self._pieces = pieces
        self._transfers = transfers
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        with self._transfers.place(self._tenant):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with asyncio.TaskGroup() as group:
                left = group.create_task(_left(receive))
                # Nothing can be answered any more: the body ends short of its length, and the client sees that.
                with contextlib.suppress(TimeoutError, ArtifactError):
                    await self._send_all(send, left)
                left.cancel()

    async def _send_all(self, send: Send, left: "asyncio.Task[None]") -> None:
        """Send the pieces. Raises TimeoutError if the client does not read."""
        async for piece in self._pieces:
            if left.done():  # Going on would read the rest from the store for nobody.
                return
            self._transfers.metrics.artifact_bytes.labels("down").inc(len(piece))
            async with asyncio.timeout(self._transfers.limits.chunk_seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
