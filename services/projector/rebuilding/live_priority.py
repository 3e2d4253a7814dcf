"""The live generation has priority over one that is filled beside it.

Both read the same log and write the same database. While the live generation is far behind the log and still moves, the
other one pauses.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import asyncpg
import structlog

from services.chassis.log.port import Log, LogError
from services.projector.generations.database import DATABASE_AWAY, connect
from services.projector.generations.errors import GenerationGoneError
from services.projector.generations.generations import stored_positions
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Filling, Positions
from services.projector.settings import ProjectorSettings

STANDS_STILL_LOOKS: Final = 5
"""A live generation that has not moved for this number of looks has no projector, so a pause does not help it."""

logger = structlog.get_logger()


class LivePriority:
    """Pauses a filling while the live generation is behind."""

    def __init__(self, log: Log, dsn: str, settings: ProjectorSettings, filling: Filling) -> None:
        self._log = log
        self._dsn = dsn
        self._settings = settings
        self._filling = filling
        self.is_paused = False

    @contextlib.asynccontextmanager
    async def of(self, live: Generation | None) -> AsyncIterator[None]:
        """Watch the live generation while the body runs. Afterwards nothing is paused. None watches nothing."""
        if live is None:
            yield
            return
        watching = asyncio.create_task(self._watch(live), name="watch-live-generation")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            self._pause_if(is_behind=False)

    async def _watch(self, live: Generation) -> None:
        """Look at the live generation again and again. Errors of log and database are left out: the next look
        may succeed.
        """
        settings = self._settings
        connection: asyncpg.Connection | None = None
        before: Positions | None = None
        looks_since_it_moved = STANDS_STILL_LOOKS
        try:
            while True:
                with contextlib.suppress(LogError, asyncpg.PostgresError, *DATABASE_AWAY):
                    if connection is None or connection.is_closed():
                        connection = await connect(self._dsn, settings)
                    stored = await stored_positions(connection, live)
                    ends = await self._log.end_offsets(stored)
                    lag = sum(ends[tp] - at for tp, at in stored.items())
                    looks_since_it_moved = 0 if before not in (None, stored) else looks_since_it_moved + 1
                    is_written = looks_since_it_moved < STANDS_STILL_LOOKS
                    self._pause_if(is_behind=is_written and lag > settings.projector_rebuild_live_lag_max)
                    before = stored
                await asyncio.sleep(settings.limits.rebuild_look_seconds)
        except GenerationGoneError:
            logger.warning("live_generation_dropped", generation=live.number)
            self._pause_if(is_behind=False)  # the rebuild itself ends when it needs the live generation
        finally:
            if connection is not None:
                connection.terminate()

    def _pause_if(self, *, is_behind: bool) -> None:
        if is_behind == self.is_paused:
            return
        self.is_paused = is_behind
        logger.info("rebuild_paused" if is_behind else "rebuild_resumed")
        (self._filling.pause if is_behind else self._filling.go_on)()
