import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from services.chassis.postgres.migrations import MIGRATIONS, migrate
from services.projector.generations.generations import migrate as migrate_views
from tests.support.worlds.ingest import Place


@pytest.fixture
async def place(fresh_database: str) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        await migrate_views(fresh_database)
        connection = await asyncpg.connect(fresh_database)
        await migrate(connection, "ingest", MIGRATIONS["ingest"])
        await connection.close()
        yield Place(fresh_database, stack)
