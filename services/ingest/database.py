"""What ingest asks of Postgres: as a tenant's reader, as the operators' reader, or as the service itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import asyncpg

from services.chassis.postgres.connections import AWAY, NO_VIEWS
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.postgres.tenancy import TenantPool
from services.ingest.http.problems import VIEWS_UNAVAILABLE, Problem, ProblemError


@cache
def statements() -> SqlFiles:
    """The SQL of all rooms of this service, by name. A name is given once."""
    here = Path(__file__).parent
    return SqlFiles(*sorted({path.parent for path in here.glob("**/sql/*.sql")}))


class Database:
    """All raise ProblemError (views-unavailable). A statement reads what belongs to tenants by `fetch`, and names the
    tenant too: the database's policies are there for the day it does not.
    """

    def __init__(self, pool: TenantPool, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds

    async def fetch(self, tenant: str, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Sees that tenant's rows alone."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch(tenant, query, *arguments)

    async def fetch_as_operator(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Sees the rows of all tenants: for the routes of operators, and for nobody else."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch_as_operator(query, *arguments)

    async def fetch_as_service(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Sees what belongs to no tenant, and API keys."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch_as_service(query, *arguments)


@contextmanager
def _as_problems() -> Iterator[None]:
    try:
        yield
    except NO_VIEWS:
        raise ProblemError(
            Problem(VIEWS_UNAVAILABLE, "There are no views yet; the projector makes them when it starts.")
        ) from None
    except AWAY as error:
        raise ProblemError(
            Problem(VIEWS_UNAVAILABLE, f"The database cannot be asked: {type(error).__name__}.")
        ) from error
