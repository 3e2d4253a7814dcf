"""The world outside: a service that publishes releases and keeps a ledger of them, as an MCP server over HTTP.

It belongs to somebody else: executors that call it come and go. It writes its ledger first and answers a good while
later; so there is a time in which a release is out, and nobody has been told.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from schemas.tools import IDEMPOTENCY_META_KEY
from services.cli.local.embedded import free_port

TOOL: Final = "publish_release"
URL_VARIABLE: Final = "DEMO_RELEASES_URL"
ANSWER_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.02


class Release(NamedTuple):
    version: str
    notes: str
    key: str
    """The idempotency key of the call that asked for it."""


@dataclass(slots=True)
class Releases:
    ledger: Path
    url: str
    published: asyncio.Event = field(default_factory=asyncio.Event)
    """The first entry is in the ledger."""

    async def publish(self, release: Release) -> str:
        await asyncio.to_thread(self._write, release)
        self.published.set()
        await asyncio.sleep(ANSWER_SECONDS)
        return f"{release.version} is published."

    def read(self) -> list[Release]:
        """What anybody sees who looks."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [Release(**json.loads(line)) for line in lines]

    def _write(self, release: Release) -> None:
        with self.ledger.open("a") as file:
            file.write(json.dumps(release._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextlib.asynccontextmanager
async def releases() -> AsyncIterator[Releases]:
    with tempfile.TemporaryDirectory(prefix="threadlog-releases-") as folder:
        port = free_port()
        desk = Releases(Path(folder) / "ledger", f"http://127.0.0.1:{port}/mcp")
        server = _Server(_configuration(desk, port))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve())
            try:
                while not server.started and not serving.done():  # noqa: ASYNC110  # it has no event for it
                    await asyncio.sleep(LOOK_SECONDS)
                yield desk
            finally:
                server.should_exit = True


def _configuration(desk: Releases, port: int) -> uvicorn.Config:
    server = MCPServer("releases", log_level="CRITICAL")

    @server.tool(name=TOOL)
    async def publish_release(version: str, notes: str, context: Context[Any, Any]) -> str:
        """Publish a version for everybody to use. It cannot be taken back."""
        meta: Any = context.request_context.meta
        return await desk.publish(Release(version, notes, str((meta or {}).get(IDEMPOTENCY_META_KEY))))

    app = server.streamable_http_app(host="127.0.0.1")
    return uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the demo's."""
        yield
