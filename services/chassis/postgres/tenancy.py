"""Reads that see one tenant's rows, by the database's own rules.

Each read is a short transaction that acts as the reading role and says which tenant it reads for. Both end with the
transaction, so a connection returns to its pool without either. The database's policies do the rest: a statement that
forgets its tenant still gets this tenant's rows alone, and a statement that names another tenant gets none.
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
"""Times that a read is tried. The views may have been pointed at another generation since a connection prepared its
statement; the connection then prepares it anew.
"""

PER_TENANT_MAX: Final = 5
"""Connections of a pool that one tenant may use at once. Below the pool's size, so that others are never shut out."""

AS_OPERATOR: Final = f"begin read only; set local role {OPERATOR}"


class Rows(Protocol):
    """Anything that answers a statement with rows. It raises what asyncpg raises."""

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return the rows of one statement."""
        ...


@dataclass(slots=True)
class _Share:
    """The part of the pool that one tenant may use. It is dropped when nobody uses it: tenants come and go."""

    free: asyncio.Semaphore
    users: int = 0
    """Reads that use it, or wait for it."""


class TenantPool:
    """A pool whose reads see one tenant. Its methods raise what asyncpg raises."""

    def __init__(self, pool: asyncpg.Pool, per_tenant_max: int = PER_TENANT_MAX) -> None:
        """Use `pool`, of which one tenant may have `per_tenant_max` connections at once, so that others find some."""
        self._pool = pool
        self._per_tenant_max = per_tenant_max
        self._shares: dict[str, _Share] = {}

    async def fetch(self, tenant: str, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return rows of one tenant. Waits while the tenant uses as many connections as it may."""
        begin = as_reader(tenant)
        async with self._share_of(tenant):
            return await self._fetch(begin, query, arguments)

    async def fetch_as_operator(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return rows of all tenants, for operators. The caller has checked that its client is one."""
        return await self._fetch(AS_OPERATOR, query, arguments)

    async def fetch_as_service(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """Return rows that belong to no tenant, such as positions, in one round trip."""
        return await self._pool.fetch(query, *arguments)

    @asynccontextmanager
    async def _share_of(self, tenant: str) -> AsyncIterator[None]:
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = _Share(asyncio.Semaphore(self._per_tenant_max))
        share.users += 1
        try:
            async with share.free:
                yield
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[tenant]

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
    """Implements `Rows` for one tenant. A read that takes longer than `timeout_seconds` raises TimeoutError."""

    def __init__(self, pool: TenantPool, tenant: str, timeout_seconds: float) -> None:
        self._pool = pool
        self._tenant = tenant
        self._timeout_seconds = timeout_seconds

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        async with asyncio.timeout(self._timeout_seconds):
            return await self._pool.fetch(self._tenant, query, *arguments)


def as_reader(tenant: str) -> str:
    """Return the statement that begins a tenant's transaction, in one round trip.

    The name goes into the statement as text, since `set` takes no arguments. `is_name` allows neither quotes nor
    backslashes, so nothing can be injected. Raise ValueError for anything else.
    """
    if not is_name(tenant):
        raise ValueError(f"{tenant!r} cannot name a tenant")
    return f"begin read only; set local role {READER}; set local app.tenant_id = '{tenant}'"


@asynccontextmanager
async def _transaction(connection: asyncpg.pool.PoolConnectionProxy, begin: str) -> AsyncIterator[None]:
    """Run the block in a transaction. asyncpg's own would take a round trip more.

    If the block fails, nothing is done here: the pool rolls back when it gets the connection.
    """
    await connection.execute(begin)
    yield
    await connection.execute("commit")
