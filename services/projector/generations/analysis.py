"""Statistics of a generation's rows, made before it becomes live, so that Postgres chooses the right index.

Reads come as soon as the generation is live, and autovacuum comes later: without statistics the planner takes any
index. It chooses by the columns in the indexes and in their conditions, so only those are analyzed. The other columns,
mostly the content of events, would take three quarters of the time. Autovacuum does not count this analysis, and
analyzes them in its own time.
"""

from collections.abc import Mapping
from typing import Final

import asyncpg

from services.projector.generations import schema_sql
from services.projector.generations.store import Generation

SECONDS_MAX: Final = 600
"""For one table. Postgres reads a sample of it, however large it is."""

COLUMNS: Final[Mapping[str, str]] = {
    "thread_states": 'tenant, thread, topic, "partition", active, quarantined',
    "positions": 'topic, "partition"',
    "threads": "tenant, thread, created_at, parent",
    "turns": "tenant, thread, turn, status, started_seq",
    "steps": "tenant, thread, turn, step",
    "tool_calls": "tenant, thread, turn, step, index, status",
    "items": "tenant, thread, seq, part, kind, place, input, dropped",
    "plans": "tenant, thread, version, status",
    "tasks": "tenant, thread, version, task",
    "artifacts": "tenant, thread, seq, part, kind, sha256, name",
    "usage": "tenant, thread, seq, response_id, at",
    "events": 'tenant, thread, seq, "offset", id, type, actor, effect',
    "dead_letters": 'topic, "partition", "offset", tenant, at',
}
"""The columns in the indexes of each table. A test compares them with the database."""


async def analyze(connection: asyncpg.Connection, generation: Generation) -> None:
    """Analyze the indexed columns of every table of the generation. It can run while the generation is written."""
    for table, columns in COLUMNS.items():
        await connection.execute(schema_sql.analyze_table(generation.schema, table, columns), timeout=SECONDS_MAX)
