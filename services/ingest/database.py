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
    """Return the SQL of all rooms of this service, by name. Each name is given once."""
    here = Path(__file__).parent
    return SqlFiles(*sorted({path.parent for path in here.glob("**/sql/*.sql")}))


class Database:
    """Runs the statements of requests, each within the time limit. All methods raise ProblemError (views-unavailable).

    A statement about a tenant's rows runs by `fetch` and names the tenant as well. The database's policies are the
    second lock, for the day on which a statement forgets it.
    """

    def __init__(self, pool: TenantPool, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds

    async def fetch(self, tenant: str, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return the rows. The statement sees that tenant's rows alone."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch(tenant, query, *arguments)

    async def fetch_as_operator(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return the rows. The statement sees all tenants: only the routes of operators use this."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch_as_operator(query, *arguments)

    async def fetch_as_service(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return the rows. The statement sees what belongs to no tenant, and API keys."""
        with _as_problems():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._pool.fetch_as_service(query, *arguments)


@contextmanager
def _as_problems() -> Iterator[None]:
    """Turn an absent database, or one without views, into the problem that clients get. Other errors are bugs and
    pass.
    """
    try:
        yield
    except NO_VIEWS:
        raise ProblemError(
            Problem(VIEWS_UNAVAILABLE, "There are no views yet; the projector makes them when it starts.")
        ) from None
    except AWAY as error:
        raise ProblemError(
            Problem(VIEWS_UNAVAILABLE, f"The database does not answer: {type(error).__name__}. Try again.")
        ) from error
