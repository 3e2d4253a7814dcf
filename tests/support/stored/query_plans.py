"""How the database would run a statement, and what it then reads."""

import json
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

LARGE_ROWS = 10_000
"""A table with more is never read as a whole."""
SORTED_ROWS_MAX = 10_000
"""No more are sorted, nor read without a condition."""
BLOCKS_MAX = 1_000
BLOCKS_WRITTEN_MAX = 5_000
"""Of what also changes rows, and their entries in the indexes."""
FILTERED_ROWS_MAX = 2_000
"""Rows that are read and not wanted."""

PLAN_OF = """
create or replace function public.plan_of(statement text) returns json language plpgsql as $$
declare
    plan json;
begin
    execute 'explain (generic_plan, format json) ' || statement into plan;
    return plan;
end
$$
"""
Node = Mapping[str, Any]


class Reading(NamedTuple):
    """As whom a statement runs, and with which settings."""

    role: str
    tenant: str = ""
    settings: Mapping[str, str] = {}


@asynccontextmanager
async def reading(connection: asyncpg.Connection, how: Reading) -> Any:
    """What is written meanwhile is taken back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        for name, value in how.settings.items():
            await connection.execute("select set_config($1, $2, true)", name, value)
        await connection.execute("select set_config('app.tenant_id', $1, true)", how.tenant)
        await connection.execute(f"set local role {how.role}")
        yield
    finally:
        await transaction.rollback()


async def generic_problems(
    connection: asyncpg.Connection, statement: str, how: Reading, large: frozenset[str]
) -> list[str]:
    """Of the plan that is kept for all values."""
    async with reading(connection, how):
        plan = json.loads(await connection.fetchval("select public.plan_of($1)", statement))
    return list(_shape_problems(plan[0]["Plan"], large, is_limited=False))


async def run_problems(
    connection: asyncpg.Connection, statement: str, arguments: str, how: Reading, large: frozenset[str]
) -> list[str]:
    """With these values, written as the database reads them: by the plan for all values and by that for these."""
    problems = []
    for mode in ("force_generic_plan", "force_custom_plan"):
        async with reading(connection, how._replace(settings={**how.settings, "plan_cache_mode": mode})):
            await connection.execute(f"prepare looked_at as {statement}")
            run = f"execute looked_at{arguments}"
            try:
                raw = await connection.fetchval(f"explain (analyze, buffers, format json) {run}")
            finally:
                await connection.execute("deallocate looked_at")
        plan = json.loads(raw)[0]["Plan"]
        found = [*_shape_problems(plan, large, is_limited=False), *_run_problems(plan)]
        problems += [f"{mode}: {problem}" for problem in found]
    return problems


def _shape_problems(node: Node, large: frozenset[str], *, is_limited: bool) -> Iterator[str]:
    kind, relation = node["Node Type"], node.get("Relation Name")
    if kind == "Seq Scan" and relation in large:
        yield f"a sequential scan of {relation}"
    reads_all = "Index" in kind and relation in large and "Index Cond" not in node and not is_limited
    if reads_all and node["Plan Rows"] > SORTED_ROWS_MAX:
        yield f"a scan of all of {node['Index Name']}"
    if kind in {"Sort", "Incremental Sort"} and node["Plan Rows"] > SORTED_ROWS_MAX:
        yield f"a sort of {node['Plan Rows']} rows by {node['Sort Key']}"
    for child in node.get("Plans", ()):
        yield from _shape_problems(child, large, is_limited=is_limited or kind == "Limit")


def _run_problems(node: Node) -> Iterator[str]:
    blocks = node["Shared Hit Blocks"] + node["Shared Read Blocks"]
    if blocks > (BLOCKS_WRITTEN_MAX if node["Node Type"] == "ModifyTable" else BLOCKS_MAX):
        yield f"{blocks} blocks are read"
    yield from _filter_problems(node)


def _filter_problems(node: Node) -> Iterator[str]:
    for name in ("Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck"):
        removed = node.get(name, 0) * node.get("Actual Loops", 1)
        if removed > FILTERED_ROWS_MAX:
            yield f"{removed} rows are read and not wanted ({node['Node Type']} of {node.get('Relation Name')})"
    for child in node.get("Plans", ()):
        yield from _filter_problems(child)
