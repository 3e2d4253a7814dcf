"""What is promised of the views: every column is described, in the database as on the page, and the queries on the page work."""

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from reference.views import QUERY_FILES, reference
from services.projector.generations.generations import VIEWS, ensure_live, migrate
from tests.support.worlds.projector import settings_of

SHORT = {"timestamp with time zone": "timestamptz", "integer": "int"}
"""Names of types on the page."""


@pytest.fixture
async def connection(fresh_database: str) -> AsyncIterator[asyncpg.Connection]:
    await migrate(fresh_database)
    await ensure_live(fresh_database, settings_of(fresh_database), "cluster")
    made = await asyncpg.connect(fresh_database)
    yield made
    await made.close()


@pytest.mark.parametrize("schema", ["views_g1", "views"])
async def test_every_table_view_and_column_is_described(connection: Any, schema: str) -> None:
    silent = await connection.fetch(
        """
        select c.relname, a.attname
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'v') and c.relname <> 'generation'
            and (col_description(c.oid, a.attnum) is null or obj_description(c.oid, 'pg_class') is null)
        """,
        schema,
    )
    assert [tuple(row) for row in silent] == []


async def test_the_page_says_what_the_database_says(connection: Any) -> None:
    columns = await connection.fetch(
        """
        select c.relname, a.attname, format_type(a.atttypid, null), col_description(c.oid, a.attnum)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = 'views'::regnamespace and c.relname <> 'generation'
        order by c.relname, a.attnum
        """
    )
    sections = {part.split("\n")[0]: part.split("\n###")[0] for part in reference().split("\n## ")[1:]}
    shown = {
        (view, name, kind.removesuffix(", may be null"), about)
        for view in VIEWS
        for name, kind, about in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", sections[view], re.MULTILINE)
    }
    assert shown == {(view, name, SHORT.get(kind, kind), about) for view, name, kind, about in columns}


@pytest.mark.parametrize("path", QUERY_FILES, ids=lambda path: path.stem)
async def test_a_query_of_the_page_works_as_it_stands(connection: Any, path: Any) -> None:
    page = "\n".join([line.removeprefix("    ") for line in reference().splitlines()])
    query = path.read_text().rstrip()
    statement = re.sub(r"^(--.*\n)+", "", query)
    assert statement in page
    prepared = await connection.prepare(statement)
    assert len(prepared.get_attributes()) > 0
