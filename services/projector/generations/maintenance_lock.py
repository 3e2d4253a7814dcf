"""The right to make, swap and remove generations: one holder per database, on whatever machine.

It is an advisory lock of a connection, so it ends with its holder, even if that is killed. After the database was away
the lock is taken again, and somebody else may have been quicker. So work under the lock checks what is live before it
changes anything, and BusyError ends it if the lock is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import asyncpg
import structlog

from services.chassis.backoff import backoff_seconds
from services.chassis.postgres.connections import CONNECT_TIMEOUT_SECONDS
from services.projector.generations.database import DATABASE_AWAY, connect
from services.projector.generations.errors import BusyError
from services.projector.generations.generations import ADVISORY_LOCK
from services.projector.settings import ProjectorSettings

T = TypeVar("T")

logger = structlog.get_logger()


class MaintenanceLock:
    """`async with MaintenanceLock(dsn, settings) as lock: await lock.do(work)`, for one task. Raises BusyError."""

    def __init__(self, dsn: str, settings: ProjectorSettings) -> None:
        self._dsn = dsn
        self._settings = settings
        self._connection: asyncpg.Connection | None = None

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None and not self._connection.is_closed():
            await self._connection.close(timeout=CONNECT_TIMEOUT_SECONDS)

    async def do(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Do the work, again and again until the database has answered: it has to be idempotent. A cancel ends it."""
        limits = self._settings.limits
        failures = 0
        while True:
            try:
                return await work(await self._connected())
            except DATABASE_AWAY as error:
                failures += 1
                pause = backoff_seconds(failures, limits.retry_seconds, limits.retry_seconds_max)
                logger.warning("database_away", error=f"{type(error).__name__}: {error}", again_in_seconds=pause)
            await asyncio.sleep(pause)

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await connect(self._dsn, self._settings)
            if not await connection.fetchval("select pg_try_advisory_lock($1)", ADVISORY_LOCK):
                await connection.close()
                raise BusyError(
                    "another rebuild, verification or drop is running on this database; wait until it has ended"
                )
            self._connection = connection
        return self._connection
