"""Connections to Postgres. `jsonb` is passed as the bytes of its JSON, so that what is only handed on is not
decoded.
"""

import asyncio
from functools import partial
from typing import Final, Protocol

import asyncpg

AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What a read raises while the database is away. The last one is raised if the server ends a connection just when the
pool hands it out.
"""
NO_VIEWS: Final = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""What a read of the views raises before the projector has built any."""

CONNECT_TIMEOUT_SECONDS: Final = 5.0
"""How long opening or closing a connection may take. A database that is there answers within milliseconds."""
JSONB_VERSION: Final = b"\x01"
"""The byte that Postgres puts before the text in the binary format of jsonb."""


class CountStatement(Protocol):
    """Is called for each statement of the pool's connections, once it is over."""

    def __call__(self, seconds: float, *, failed: bool) -> None: ...


async def open_pool(
    dsn: str,
    *,
    application_name: str,
    size_min: int,
    size_max: int,
    command_timeout_seconds: float,
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    role: str = "",
    count_statement: CountStatement | None = None,
) -> asyncpg.Pool:
    """Make a pool. With `size_min` 0 nothing is connected yet, so a service starts while its database is away.

    Each connection acts as `role` from its start; with an empty role it acts as the login.

    Statements and transactions must leave nothing behind in the session. A connection is not reset between its users,
    because that would cost a round trip for each query.
    """
    return await asyncpg.create_pool(
        dsn,
        connection_class=_UnresetConnection,
        init=partial(_prepare, count_statement),
        min_size=size_min,
        max_size=size_max,
        command_timeout=command_timeout_seconds,
        timeout=connect_timeout_seconds,
        server_settings={"application_name": application_name, **({"role": role} if role else {})},
    )


async def _prepare(count_statement: CountStatement | None, connection: asyncpg.Connection) -> None:
    await set_jsonb_codec(connection)
    if count_statement is not None:
        connection.add_query_logger(partial(_count, count_statement))


def _count(count_statement: CountStatement, logged: asyncpg.connection.LoggedQuery) -> None:
    count_statement(logged.elapsed, failed=logged.exception is not None)


class _UnresetConnection(asyncpg.Connection):
    def get_reset_query(self) -> str:
        return ""

    async def reset(self, *, timeout: float | None = None) -> None:
        """Roll back a transaction that failed; leave everything else as it is."""
        if self.is_in_transaction():
            async with asyncio.timeout(timeout):
                await self.execute("rollback")
        await super().reset(timeout=timeout)


async def set_jsonb_codec(connection: asyncpg.Connection) -> None:
    """Let `jsonb` of this connection be passed as bytes, both ways."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=_encode_jsonb, decoder=_decode_jsonb
    )


def _encode_jsonb(json: bytes) -> bytes:
    return JSONB_VERSION + json


def _decode_jsonb(stored: bytes) -> bytes:
    return bytes(stored[1:])
