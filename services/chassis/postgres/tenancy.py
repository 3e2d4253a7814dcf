"""Reads that see one tenant's rows, by the database's own rules.

Each is a short transaction that takes the reading role on and says which tenant it reads for; both are over with the
transaction, so a connection goes back to its pool as nobody in particular. A statement that forgets its tenant gets
this tenant's rows all the same, one that names another gets none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import asyncpg

from schemas.ids import is_name
from services.chassis.postgres.roles import OPERATOR, READER

TRIES: Final = 2
"""The views may point at another generation than when a connection prepared its statement. It then prepares it anew."""

PER_TENANT_MAX: Final = 5

AS_OPERATOR: Final = f"begin read only; set local role {OPERATOR}"


class Rows(Protocol):
    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]: ...


@dataclass(slots=True)
class _Places:
    """Of one tenant."""

    free: asyncio.Semaphore
    users: int = 0
    """Those that have one, and those that wait."""


class TenantPool:
    """All raise what asyncpg does."""

    def __init__(self, pool: asyncpg.Pool, per_tenant_max: int = PER_TENANT_MAX) -> None:
        """`per_tenant_max`: connections that one tenant may have at once, so that there are some for the others."""
        self._pool = pool
        self._per_tenant_max = per_tenant_max
        self._places: dict[str, _Places] = {}

    async def fetch(self, tenant: str, query: str, *arguments: object) -> list[asyncpg.Record]:
        begin = as_reader(tenant)
        async with self._place(tenant):
            return await self._fetch(begin, query, arguments)

    async def fetch_as_operator(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        return await self._fetch(AS_OPERATOR, query, arguments)

    async def fetch_as_service(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """For what belongs to no tenant, in one round trip."""
        return await self._pool.fetch(query, *arguments)

    @asynccontextmanager
    async def _place(self, tenant: str) -> AsyncIterator[None]:
        places = self._places.get(tenant)
        if places is None:
            places = self._places[tenant] = _Places(asyncio.Semaphore(self._per_tenant_max))
        places.users += 1
        try:
            async with places.free:
                yield
        finally:
            places.users -= 1
            if not places.users:
                del self._places[tenant]

    async def _fetch(self, begin: str, query: str, arguments: tuple[object, ...]) -> list[asyncpg.Record]:
        for _ in range(TRIES - 1):
            try:
                return await self._try(begin, query, arguments)
            except asyncpg.InvalidCachedStatementError:
                continue
        return await self._try(begin, query, arguments)

    async def _try(self, begin: str, query: str, arguments: tuple[object, ...]) -> list[asyncpg.Record]:
        async with self._pool.acquire() as connection, _transaction(connection, begin):
            return await connection.fetch(query, *arguments)


class OfTenant:
    """`Rows` of one tenant."""

    def __init__(self, pool: TenantPool, tenant: str, timeout_seconds: float) -> None:
        self._pool = pool
        self._tenant = tenant
        self._timeout_seconds = timeout_seconds

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        async with asyncio.timeout(self._timeout_seconds):
            return await self._pool.fetch(self._tenant, query, *arguments)


def as_reader(tenant: str) -> str:
    """Begins a transaction, in one round trip. Names of tenants hold no quotes and no backslashes."""
    if not is_name(tenant):
        raise ValueError(f"{tenant!r} cannot name a tenant")
    return f"begin read only; set local role {READER}; set local app.tenant_id = '{tenant}'"


@asynccontextmanager
async def _transaction(connection: asyncpg.pool.PoolConnectionProxy, begin: str) -> AsyncIterator[None]:
    """Without asyncpg's own, which would take a round trip more. What fails is rolled back by the pool."""
    await connection.execute(begin)
    yield
    await connection.execute("commit")
