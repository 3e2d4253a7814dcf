"""The relay's store in Postgres. It has its own connections, so it never waits for a batch, and no batch waits
for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Final

import asyncpg

from schemas.other_topics.effects import EffectRow
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.applying.effects import Rows
from services.projector.generations.database import SCHEMA_GONE, Link
from services.projector.generations.errors import GenerationGoneError
from services.projector.generations.store import Generation
from services.projector.settings import ProjectorSettings

_GONE: Final = (*SCHEMA_GONE, asyncpg.UndefinedColumnError)


class PostgresRelayStore:
    """Implements `RelayStore`."""

    def __init__(self, dsn: str, settings: ProjectorSettings) -> None:
        self._dsn = dsn
        self._settings = settings
        self._positions = Link(dsn, settings, "threadlog")
        self._events: tuple[str, Link] | None = None
        """The connection to the generation that was read last, with its schema."""
        self._turn = asyncio.Lock()
        """Partitions ask at the same time, and a connection answers one question at a time."""
        self._sql = SqlFiles(Path(__file__).with_name("sql"))

    async def close(self) -> None:
        await self._positions.close()
        if self._events is not None:
            await self._events[1].close()

    async def positions(self, topic: str, cluster_id: str, partitions: Iterable[int]) -> dict[int, int]:
        async with self._connected(self._positions) as connection:
            rows = await connection.fetch(self._sql["select_relay_positions"], topic, cluster_id, sorted(partitions))
        return {row["partition"]: row["next_offset"] for row in rows}

    async def begin(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        await self._execute("begin_relay_positions", topic, cluster_id, positions)

    async def move(self, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        await self._execute("move_relay_positions", topic, cluster_id, positions)

    async def read(self, generation: Generation, partition: int, from_offset: int, to_offset: int) -> Rows:
        async with self._connected(await self._link(generation.schema)) as connection:
            found = await connection.fetch(
                self._sql["select_effects"], generation.topic, partition, from_offset, to_offset
            )
        rows = [_row(record) for record in found if record["offset"] is not None]
        return Rows(rows, found[0]["to_offset"] if found else from_offset)

    async def _execute(self, statement: str, topic: str, cluster_id: str, positions: Mapping[int, int]) -> None:
        # In one order, so that two owners that write the same rows cannot deadlock.
        partitions = sorted(positions)
        async with self._connected(self._positions) as connection:
            await connection.execute(
                self._sql[statement], topic, cluster_id, partitions, [positions[partition] for partition in partitions]
            )

    async def _link(self, schema: str) -> Link:
        if self._events is None or self._events[0] != schema:
            async with self._turn:
                if self._events is not None:
                    await self._events[1].close()
                self._events = (schema, Link(self._dsn, self._settings, schema))
        return self._events[1]

    @contextlib.asynccontextmanager
    async def _connected(self, link: Link) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection; its errors become those of the port."""
        async with self._turn, link.connected() as connection:
            try:
                yield connection
            except _GONE as error:
                raise GenerationGoneError(f"a table of the relay is not there as it was: {error}") from error


def _row(record: asyncpg.Record) -> EffectRow:
    return EffectRow(*list(record.values())[1:])
