"""Keep one import worker running while there are imports to work on.

The worker is a process of its own, apart from the requests that this process answers: a session file of a gigabyte must
not slow them down, and one that needs too much memory must not kill them.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Any, Final, Literal

import structlog

from services.chassis.postgres.connections import AWAY
from services.ingest.imports.jobs import Jobs

logger = structlog.get_logger()
POLL_SECONDS: Final = 5.0
"""How often the service looks for imports that nobody works on: those whose worker died in another process. An import
that this process accepts is begun at once.
"""
COMMAND = (sys.executable, "-m", "services.ingest.imports.worker")
"""How the worker is started."""


class ImportSupervisor:
    """Starts the worker when there is work, and ends it with this service."""

    def __init__(self, jobs: Jobs, wanted: asyncio.Event, poll_seconds: float = POLL_SECONDS) -> None:
        self._jobs = jobs
        self._wanted = wanted
        self._poll_seconds = poll_seconds

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set."""
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            while not stopping.is_set():
                if await self._has_work():
                    await self._work(stopped)
                await self._sleep(stopped)
        finally:
            stopped.cancel()

    async def _has_work(self) -> bool:
        """Return whether an import waits. While the database is away there is nothing to do, and nothing to report."""
        try:
            return await self._jobs.waiting() > 0
        except AWAY:
            return False

    async def _sleep(self, stopped: "asyncio.Task[Literal[True]]") -> None:
        """Wait until an import is accepted here, the pause is over, or the service stops."""
        woken = asyncio.ensure_future(self._wanted.wait())
        either: set[asyncio.Task[Literal[True]]] = {woken, stopped}
        await asyncio.wait(either, timeout=self._poll_seconds, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()
        self._wanted.clear()

    async def _work(self, stopped: "asyncio.Task[Literal[True]]") -> None:
        """Run the worker until it ends or this service does.

        The pipe to its standard input ends with this process, however this process ends, so that no worker is left
        behind.
        """
        process = await asyncio.create_subprocess_exec(*COMMAND, stdin=asyncio.subprocess.PIPE, env=dict(os.environ))
        ended = asyncio.ensure_future(process.wait())
        try:
            either: set[asyncio.Future[Any]] = {ended, stopped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            code = await ended
            if code:
                logger.warning("import_worker_ended", code=code)
