"""The views and imports in the database of THREADLOG_POSTGRES_DSN say which artifacts are named."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg

from schemas.topics import THREAD_EVENTS
from services.chassis.artifacts.care import Reference
from services.chassis.errors import SetupError
from services.chassis.log.port import Log, TopicPartition
from services.chassis.postgres.connections import CONNECT_TIMEOUT_SECONDS
from services.chassis.postgres.database_setup import connect
from services.chassis.postgres.roles import INGEST, OPERATOR
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.settings import Settings

LOOK_SECONDS: Final = 0.1
PAGE: Final = 1_000
SWAPS_MAX: Final = 5


class ViewedReferences:
    """Reads references: `operator` sees the rows of all tenants, `service` the positions."""

    def __init__(
        self, operator: asyncpg.Connection, service: asyncpg.Connection, log: Log, views_seconds: float
    ) -> None:
        self._operator = operator
        self._service = service
        self._log = log
        self._views_seconds = views_seconds
        self._sql = SqlFiles(Path(__file__).with_name("sql"))
        self._ends: dict[int, int] = {}
        """Offsets that the views have passed."""

    async def catch_up(self) -> None:
        partitions = await self._log.partition_count(THREAD_EVENTS.name)
        tps = [TopicPartition(THREAD_EVENTS.name, number) for number in range(partitions)]
        self._ends = {tp.partition: end for tp, end in (await self._log.end_offsets(tps)).items()}
        await self._pass()

    async def _pass(self) -> None:
        behind = 0
        try:
            async with asyncio.timeout(self._views_seconds):
                while behind := await self._behind():  # noqa: ASYNC110  # the event is another process's
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise SetupError(
                f"the views are {behind} records behind the log after {self._views_seconds:g} s, so what events name is"
                " not known; let the projector catch up, then run this again"
            ) from None

    async def named(self, tenant: str, hashes: Collection[str]) -> frozenset[str]:
        for _ in range(SWAPS_MAX):
            found = await self._named(tenant, hashes)
            if not await self._behind():
                return found
            # Another generation took the place of the one that was waited for.
            await self._pass()
        raise SetupError("one generation of the views after another took the place of the live one; run this again")

    async def _named(self, tenant: str, hashes: Collection[str]) -> frozenset[str]:
        if await self._operator.fetchval(self._sql["gaps_of_tenant"], tenant):
            return frozenset(hashes)
        rows = await self._operator.fetch(self._sql["named_artifacts"], tenant, list(hashes))
        imported = await self._operator.fetch(self._sql["imported_artifacts"], tenant, list(hashes))
        return frozenset(row["sha256"] for row in (*rows, *imported))

    async def all(self, tenant: str | None) -> AsyncIterator[Reference]:
        """Yield the references page by page: a long read of a view would keep generations from swapping."""
        at = (tenant or "", "")
        while rows := await self._operator.fetch(self._sql["all_artifacts"], *at, PAGE):
            for row in rows:
                if tenant not in {None, row["tenant"]}:
                    return
                yield Reference(row["tenant"], row["sha256"], row["size"], row["thread"], row["seq"])
            at = rows[-1]["tenant"], rows[-1]["sha256"]

    async def _behind(self) -> int:
        rows = await self._service.fetch(self._sql["positions"], THREAD_EVENTS.name)
        at = {row["partition"]: row["next_offset"] for row in rows}
        return sum(max(0, end - at.get(partition, 0)) for partition, end in self._ends.items())


@asynccontextmanager
async def viewed_references(settings: Settings, log: Log, views_seconds: float) -> AsyncIterator[ViewedReferences]:
    operator = await connect(settings, OPERATOR)
    try:
        service = await connect(settings, INGEST)
        try:
            yield ViewedReferences(operator, service, log, views_seconds)
        finally:
            await service.close(timeout=CONNECT_TIMEOUT_SECONDS)
    finally:
        await operator.close(timeout=CONNECT_TIMEOUT_SECONDS)
