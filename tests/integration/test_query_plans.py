"""No read of the views scans a large table or sorts much, and none costs more in a thread with 100,000 events.

Every statement of the services that reads the views, and every documented query, is planned for any values; most also
run, with the values that would cost most: the middle of the longest thread, the last page of the longest list.
"""

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from reference.views import QUERY_FILES
from services.chassis.postgres.roles import EXECUTOR, INGEST, OPERATOR, PROJECTOR, READER, RUNTIME
from services.projector.generations.database import WRITER
from services.projector.generations.generations import FOLDER, ensure_live, migrate
from tests.support.processes.services import database
from tests.support.stored.large_views import EVENTS, TENANT, THREAD, TURNS, fill
from tests.support.stored.query_plans import LARGE_ROWS, PLAN_OF, Reading, generic_problems, run_problems
from tests.support.worlds.projector import settings_of

SERVICES = FOLDER.parent
QUERIES = SERVICES.parent / "reference" / "queries"
MIDDLE = EVENTS // 2
OF_THREAD = f"'{TENANT}', '{THREAD}'"
IDS = "'{b31d7c7e-3d1c-4a52-8b5a-6a5ab4a64a3d}'"

AS_READER = Reading(READER, TENANT)
READERS: Final = (
    ("services/ingest/operations/", Reading(OPERATOR)),
    ("services/ingest/commands/sql/positions", Reading(INGEST)),
    ("services/cli/artifacts/sql/positions", Reading(INGEST)),
    ("services/cli/artifacts/sql/", Reading(OPERATOR)),
    ("services/ingest/", AS_READER),
    ("reference/queries/", AS_READER),
    ("services/importer/", AS_READER),
    ("services/runtime/", Reading(RUNTIME)),
    ("services/chassis/threads/sql/context_at", Reading(RUNTIME)),
    ("services/chassis/", Reading(EXECUTOR)),
    ("services/projector/", Reading(PROJECTOR, settings={"search_path": "views_g1", **WRITER})),
)
"""Whose a statement is, by the beginning of its path."""

NOT_OF_VIEWS: Final = {
    *(
        "admit_log",
        "all_generations",
        "delete_generation",
        "describe_views",
        "generation",
        "grants_of_views",
        "insert_generation",
    ),
    *("list_generations", "live_generation", "policies", "set_generation_status", "unfinished_generations"),
}
READS_ALL: Final = re.compile(
    r"/importer/sql/import_(turns|call)|/verify_|/(all_artifacts|gaps_of_tenant)|/(begin_relay|move_relay|select_relay|move_window|delete_window|select_window|upsert_window)"
)
"""What reads a whole generation, because that is its purpose, and what is outside the generations. Of imports: the turns
of a thread, once for each file that goes on with it, which are compared with those of the whole file; and the call that
a file is the work of, once for each such file, by a name that no index of the views is kept for.
"""

VALUES: Final[Mapping[str, str]] = {
    "ingest/call_facts": f"({OF_THREAD}, '{TURNS // 2}.1.0')",
    "ingest/call_standing": f"({OF_THREAD}, '10.1.0')",
    "cli/named_artifacts": f"('{TENANT}', '{{{{sha-7,sha-8}}}}')",
    "cli/positions": "('thread-events')",
    "ingest/command": f"({OF_THREAD}, md5('{THREAD}' || 33)::uuid)",
    "ingest/earlier_commands": f"({OF_THREAD}, 'thread-events', 3, {IDS})",
    "ingest/event_at": f"({OF_THREAD}, 3, {EVENTS + 5})",
    "ingest/events_page": f"({OF_THREAD}, {MIDDLE}, 9007199254740991, true, 201, 4194304)",
    "ingest/fork_configs": f"({OF_THREAD}, {MIDDLE}, 1001)",
    "ingest/fork_made": f"({OF_THREAD}, md5('{THREAD}' || 33)::uuid)",
    "ingest/fork_point": f"({OF_THREAD}, {MIDDLE}, null, 100)",
    "ingest/input_standing": f"({OF_THREAD}, 'i33')",
    "ingest/latest_changes": f"({OF_THREAD}, '{{file-4}}')",
    "ingest/ops_quarantined_threads": "('thread-events', 100)",
    "ingest/ops_quiet_threads": "('thread-events', '2027-01-01', 'tenant-1', 'thread-1', 100)",
    "ingest/page_approvals": f"('{TENANT}', 'thread-2', 1, 1, 0, 50)",
    "ingest/page_approvals_of_thread": f"('{TENANT}', 'thread-300', '', 0, 0, -1, 50)",
    "ingest/page_inputs": f"({OF_THREAD}, {MIDDLE}, 50)",
    "ingest/page_items": f"({OF_THREAD}, {MIDDLE}, 0, 50)",
    "ingest/page_steps": f"({OF_THREAD}, {TURNS // 2}, 1, 50)",
    "ingest/page_threads": f"('{TENANT}', '2026-01-20', 'thread-5', true, 'closed', null, '{{}}', 1000, 50)",
    "ingest/page_tool_calls": f"({OF_THREAD}, {TURNS // 2}, 1, 0, 50)",
    "ingest/page_turns": f"({OF_THREAD}, {TURNS // 2}, 50)",
    "ingest/page_unknown_calls": f"('{TENANT}', 'thread-2', 1, 1, 0, 50)",
    "ingest/page_unknown_calls_of_thread": f"('{TENANT}', 'thread-140', '', 0, 0, -1, 50)",
    "ingest/page_usage": f"('{TENANT}', '2026-01-03', '2026-01-03 01:00', '2026-01-03', '', 50)",
    "ingest/page_plan": f"('{TENANT}', 'thread-300', 9, 50)",
    "ingest/plan_facts": f"({OF_THREAD}, md5('{THREAD}' || 33)::uuid)",
    "ingest/plan_standing": f"('{TENANT}', 'thread-300', 1)",
    "ingest/positions": "('thread-events')",
    "ingest/state_newest": f"({OF_THREAD}, {EVENTS}, 10000, 4194304)",
    "ingest/state_records": f"({OF_THREAD}, {MIDDLE}, {EVENTS}, 500, 4194304)",
    "ingest/turn_changes": f"({OF_THREAD}, {TURNS // 2}, 10000)",
    "ingest/thread": f"({OF_THREAD})",
    "ingest/threads_looked_at": f"('{TENANT}', '2026-01-20', 'thread-5', 1000)",
    "ingest/thread_row": f"({OF_THREAD}, 'thread-events', 3)",
    "importer/import_ended": f"({OF_THREAD}, {MIDDLE})",
    "importer/import_recent": f"({OF_THREAD}, {EVENTS - 500})",
    "importer/import_rewinds": f"({OF_THREAD})",
    "runtime/select_child_ends": f"('{TENANT}', '{{{THREAD}}}', '{{i33}}')",
    "runtime/select_transcript": f"({OF_THREAD})",
    "chassis/context_at": f"({OF_THREAD}, {MIDDLE}, 10000, 4194304)",
    "chassis/states_keys": "('thread-events', 3, 100)",
    "chassis/states_of_threads": f"('thread-events', 3, '{{{TENANT}}}', '{{{THREAD}}}')",
    "reference/approvals": f"('{TENANT}', 'thread-2', 1, 1, 0)",
    "reference/artifacts_by_content": f"('{TENANT}', 'sha-7', '', 0, 0)",
    "reference/artifacts_of_thread": f"({OF_THREAD}, {MIDDLE}, 0)",
    "reference/call_results": f"({OF_THREAD}, {TURNS // 2})",
    "reference/context": f"({OF_THREAD})",
    "reference/dead_letters": f"('{TENANT}', '2026-01-01 05:00')",
    "reference/events": f"({OF_THREAD}, {MIDDLE})",
    "reference/inputs": f"({OF_THREAD}, {MIDDLE})",
    "reference/plan_in_force": f"('{TENANT}', 'thread-300')",
    "reference/plans_waiting": f"('{TENANT}', 'thread-5', 1)",
    "reference/positions": "(3)",
    "reference/steps": f"({OF_THREAD}, {TURNS // 2})",
    "reference/thread": f"({OF_THREAD})",
    "reference/threads_newest": f"('{TENANT}', '2026-01-20', 'thread-5')",
    "reference/threads_of_parent": f"('{TENANT}', '{THREAD}', 'thread-2')",
    "reference/turns_latest": f"({OF_THREAD}, {TURNS // 2})",
    "reference/unknown_calls": f"('{TENANT}', 'thread-2', 1, 1, 0)",
    "projector/select_states": f"('{{{TENANT}}}', '{{{THREAD}}}')",
    "projector/rewind_items": f"('{{{TENANT}}}', '{{{THREAD}}}', '{{{TURNS - 10}}}', '{{{EVENTS + 1}}}')",
    "projector/restore_items": f"('{{{TENANT}}}', '{{{THREAD}}}', '{{{EVENTS + 1}}}')",
    "projector/compact_items": f"('{{{TENANT}}}', '{{{THREAD}}}', '{{{EVENTS - 4800}}}', '{{{EVENTS + 1}}}')",
}
"""By service and name of the statement. Not of those that add up: they read what there is to add, and no more."""


def statements() -> list[Path]:
    folders = [*SERVICES.glob("**/sql"), QUERIES]
    paths = sorted(path for folder in folders for path in folder.glob("*.sql"))
    return [path for path in paths if _reads_views(path)]


def _reads_views(path: Path) -> bool:
    if READS_ALL.search(str(path)) or path.stem in NOT_OF_VIEWS:
        return False
    return (
        path.is_relative_to(FOLDER)
        or path.is_relative_to(QUERIES)
        or re.search(r"\bviews\.(?!generation\b)\w", path.read_text()) is not None
    )


def _reading(path: Path) -> Reading:
    relative = str(path.relative_to(SERVICES.parent))
    return next(how for start, how in READERS if relative.startswith(start))


def _name(path: Path) -> str:
    if path.is_relative_to(QUERIES):
        return f"reference/{path.stem}"
    return f"{path.relative_to(SERVICES).parts[0]}/{path.stem}"


_TEXT: Final = {path: path.read_text() for path in statements()}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def large(postgres_dsn: str) -> AsyncIterator[tuple[asyncpg.Connection, frozenset[str]]]:
    """A connection that may take every role, and the tables that are large."""
    async with database(postgres_dsn) as dsn:
        await migrate(dsn)
        generation = await ensure_live(dsn, settings_of(dsn), "cluster")
        connection = await asyncpg.connect(dsn)
        try:
            await fill(connection, generation.schema)
            await connection.execute(PLAN_OF)
            tables = await connection.fetch(
                "select relname from pg_class where relkind = 'r' and relnamespace = $1::regnamespace and reltuples > $2",
                generation.schema,
                LARGE_ROWS,
            )
            yield connection, frozenset([row[0] for row in tables])
        finally:
            await connection.close()


Large = tuple[asyncpg.Connection, frozenset[str]]


async def test_the_tables_are_large(large: Large) -> None:
    tables = {
        "thread_states",
        "threads",
        "turns",
        "steps",
        "tool_calls",
        "items",
        "plans",
        "tasks",
        "artifacts",
        "usage",
    }
    assert large[1] == tables | {"events", "dead_letters"}


@pytest.mark.parametrize("path", statements(), ids=_name)
async def test_a_statement_reads_little_whatever_its_values(large: Large, path: Path) -> None:
    connection, tables = large
    problems = await generic_problems(connection, _TEXT[path], _reading(path), tables)
    assert not problems, "; ".join(problems)


@pytest.mark.parametrize("path", [path for path in statements() if _name(path) in VALUES], ids=_name)
async def test_a_statement_costs_no_more_in_the_longest_thread(large: Large, path: Path) -> None:
    connection, tables = large
    problems = await run_problems(connection, _TEXT[path], VALUES[_name(path)], _reading(path), tables)
    assert not problems, "; ".join(problems)


def test_every_statement_with_values_is_there() -> None:
    assert VALUES.keys() <= {_name(path) for path in statements()}
    assert {path.stem for path in QUERY_FILES} <= {path.stem for path in statements()}


@pytest.mark.parametrize(
    ("statement", "values", "problem"),
    [
        (
            "select count(*) from views.events where tenant = $1 and type = $2",
            "('acme', 'turn.ended')",
            "rows are read",
        ),
        ("select thread from views.threads where tenant = $1 order by updated_at", "('tenant-1')", "sequential|blocks"),
        (
            "select seq from views.items where tenant = $1 and thread = $2 order by digest",
            f"({OF_THREAD})",
            "blocks|a sort",
        ),
        ("select count(*) from views.threads where title = $1", "('x')", "sequential scan of threads"),
    ],
)
async def test_what_reads_much_is_found(large: Large, statement: str, values: str, problem: str) -> None:
    connection, tables = large
    found = await run_problems(connection, statement, values, AS_READER, tables)
    assert any(re.search(problem, text) for text in found), found
