"""How child threads ended, read from the views.

Normally a child's owner appends the end to the parent's thread. It may die between reading the end back and that
append; then only the views know, and the parent's owner finds the end here. The views may be behind or away. That
delays the parent, and nothing else: it looks again.
"""

from collections.abc import Mapping
from typing import Protocol

import asyncpg
import orjson
import structlog

from services.chassis.postgres.connections import AWAY
from services.chassis.postgres.sql_files import SqlFiles
from services.runtime.deciding.children import WITHDRAWN, answer_text, child_end
from services.runtime.deciding.decisions import ChildEnd

log = structlog.get_logger()


class ChildStore(Protocol):
    async def find_ends(self, tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
        """Return the end of each thread that has ended with its input, by thread.

        `inputs` names, for each thread of the tenant, the input that it was begun with. A thread that has not ended is
        left out, and so are all if the views are away.
        """


class PostgresChildren:
    def __init__(self, pool: asyncpg.Pool, sql: SqlFiles) -> None:
        self._pool = pool
        self._sql = sql

    async def find_ends(self, tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
        try:
            rows = await self._pool.fetch(self._sql["select_child_ends"], tenant, list(inputs), list(inputs.values()))
        except AWAY as error:
            log.warning("child_lookup_failed", error=str(error))
            return {}
        return {row["thread"]: _end(row) for row in rows}


def _end(row: asyncpg.Record) -> ChildEnd:
    if row["is_withdrawn"]:
        return child_end(None, WITHDRAWN, "")
    contents = [orjson.loads(content) for content in row["answer"] or ()]
    return child_end(row["outcome"], row["reason"], answer_text(contents))
