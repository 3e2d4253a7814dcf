"""The statistics with which a generation becomes live."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from services.projector.generations.analysis import COLUMNS, analyze
from services.projector.generations.generations import TABLES, ensure_live, migrate
from services.projector.generations.store import Generation
from tests.support.recorded.histories import History, plain_turn
from tests.support.recorded.walks import as_read
from tests.support.worlds.projector import apply_all, key_of, settings_of, until

STATISTICS = "select tablename, attname from pg_stats where schemaname = 'views_g1'"


@pytest.fixture
async def generation(fresh_database: str) -> Generation:
    await migrate(fresh_database)
    settings = settings_of(fresh_database)
    made = await ensure_live(fresh_database, settings, "cluster")
    await apply_all(made, settings, as_read(plain_turn(History(key_of(1))), 3), 100)
    return made


@pytest.fixture
async def connection(fresh_database: str, generation: Generation) -> AsyncIterator[asyncpg.Connection]:
    made = await asyncpg.connect(fresh_database)
    yield made
    await made.close()


async def test_the_columns_are_those_of_the_indexes(connection: asyncpg.Connection) -> None:
    """By which they find rows and, where they are of a part of the rows, by which they leave others out."""
    rows = await connection.fetch(
        """
        select c.relname, array_agg(a.attname::text) from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = 'views_g1'::regnamespace and c.relkind = 'r' and exists (
            select from pg_index x left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = x.indexrelid
                and d.refobjid = c.oid
            where x.indrelid = c.oid and (a.attnum = any (x.indkey) or a.attnum = d.refobjsubid)
        )
        group by 1
        """
    )
    named = {table: {column.strip('"') for column in columns.split(", ")} for table, columns in COLUMNS.items()}
    assert named == {table: set(columns) for table, columns in rows}
    assert tuple(named) == TABLES


async def test_the_planner_knows_of_them_and_of_nothing_else(
    connection: asyncpg.Connection, generation: Generation
) -> None:
    await until(lambda: _not_looked_at(connection), bool)
    await analyze(connection, generation)
    known = {tuple(row) for row in await connection.fetch(STATISTICS)}
    assert ("events", "actor") in known and ("events", "data") not in known
    assert all(column in COLUMNS[table] for table, column in known)
    together = await connection.fetch("select tablename from pg_stats_ext where dependencies is not null")
    assert "events" in {row[0] for row in together}
    assert await _not_looked_at(connection), "autovacuum has to come and look at the rest"
    await connection.execute("analyze views_g1.events")
    assert not await _not_looked_at(connection)


async def _not_looked_at(connection: asyncpg.Connection) -> int:
    """Rows that are new since the last analysis, as autovacuum counts."""
    rows: int = await connection.fetchval(
        "select n_mod_since_analyze from pg_stat_all_tables where schemaname = 'views_g1' and relname = 'events'"
    )
    return rows
