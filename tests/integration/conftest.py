import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from services.chassis.migrations import migrate
from services.projector.generations import migrate as migrate_views
from tests.support.ingest_place import INGEST, Place


@pytest.fixture
async def place(fresh_database: str) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        await migrate_views(fresh_database)
        connection = await asyncpg.connect(fresh_database)
        await migrate(connection, "ingest", INGEST / "migrations")
        await connection.close()
        yield Place(fresh_database, stack)
