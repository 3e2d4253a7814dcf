"""What Postgres knows of a generation's rows when it becomes live: enough to choose the right index.

Reads come as soon as it is live, autovacuum later: without statistics the planner takes any index. It chooses by the
columns that the indexes find rows by, or leave rows out by. The others, mostly what the events hold, are three quarters
of the time that it takes to look at all of them; autovacuum, which does not count this, comes to them in its own time.
"""

from collections.abc import Mapping
from typing import Final

import asyncpg

from services.projector.generations.store import Generation

SECONDS_MAX: Final = 600
"""For one table: a sample of it is read, however large it is."""

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
"""Of the indexes of each table; a test asks the database for them."""


async def analyze(connection: asyncpg.Connection, generation: Generation) -> None:
    for table, columns in COLUMNS.items():
        await connection.execute(f"analyze {generation.schema}.{table} ({columns})", timeout=SECONDS_MAX)
