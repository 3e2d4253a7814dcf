"""The ends of child threads, as the views tell them: for ends that their own runtime did not tell the parent."""

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
    async def ends(self, tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
        """Of those of the tenant's threads that have come to an end with the given input, by thread. Nothing where the
        views are away.
        """


class PostgresChildren:
    def __init__(self, pool: asyncpg.Pool, sql: SqlFiles) -> None:
        self._pool = pool
        self._sql = sql

    async def ends(self, tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
        try:
            rows = await self._pool.fetch(self._sql["select_child_ends"], tenant, list(inputs), list(inputs.values()))
        except AWAY as error:
            log.warning("children_not_looked_up", error=str(error))
            return {}
        return {row["thread"]: _end(row) for row in rows}


def _end(row: asyncpg.Record) -> ChildEnd:
    if row["is_withdrawn"]:
        return child_end(None, WITHDRAWN, "")
    contents = [orjson.loads(content) for content in row["answer"] or ()]
    return child_end(row["outcome"], row["reason"], answer_text(contents))
