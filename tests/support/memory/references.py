"""`ViewedReferences` as it is, its four statements answered by the views in memory."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from services.chassis.log.port import Log
from services.cli.artifacts.references import ViewedReferences
from services.projector.projections import artifacts, dead_letters
from tests.support.memory.database import TOPIC, AwayError, MemoryDatabase, Session
from tests.support.memory.tables import Tables

T = TypeVar("T")
NOT_SHOWN = {"fold_failed", "rows_failed", "row_refused", "row_too_large"}
TENANT, FAULT = (dead_letters.COLUMNS.index(name) for name in ("tenant", "fault"))
SHA256 = artifacts.COLUMNS.index("sha256")


class ReferencesConnection:
    """As much of asyncpg's as they use. It ends with the database, and by `terminate`."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._session = Session(database)

    def terminate(self) -> None:
        self._session.close()

    async def fetchval(self, statement: str, tenant: str) -> bool:
        assert "views.dead_letters" in statement
        return await self._ask(
            lambda tables: any(
                row[TENANT] == tenant and row[FAULT] in NOT_SHOWN
                for rows in tables.groups("dead_letters").values()
                for row in rows.values()
            )
        )

    async def fetch(self, statement: str, *given: Any) -> list[dict[str, Any]]:
        if "views.positions" in statement:
            return await self._ask(
                lambda tables: [
                    {"partition": partition, "next_offset": at.next_offset}
                    for partition, at in tables.positions.items()
                    if given == (TOPIC,)
                ]
            )
        if "ingest.import_files" in statement:
            return []
        assert "views.artifacts" in statement
        tenant, hashes = given
        return await self._ask(lambda tables: [{"sha256": name} for name in _named(tables, tenant) & set(hashes)])

    async def _ask(self, read: Callable[[Tables], T]) -> T:
        try:
            return await self._session.ask(lambda: read(self._database.tables or Tables()))
        except AwayError as error:
            raise ConnectionError(str(error)) from error


def references_in_memory(connection: ReferencesConnection, log: Log, views_seconds: float) -> ViewedReferences:
    twin = cast("Any", connection)
    return ViewedReferences(twin, twin, log, views_seconds)


def _named(tables: Tables, tenant: str) -> set[str]:
    return {
        row[SHA256] for whose, rows in tables.groups("artifacts").items() if whose[0] == tenant for row in rows.values()
    }
