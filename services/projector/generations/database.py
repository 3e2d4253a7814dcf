"""Connections that write one generation: its schema first on the search path, and types as the projections have them.

Times go in as milliseconds since 1970, json and jsonb as the bytes of their JSON.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import asyncpg

from services.chassis.postgres.connections import CONNECT_TIMEOUT_SECONDS, set_jsonb_codec
from services.projector.generations.errors import StoreAwayError
from services.projector.settings import ProjectorSettings

DATABASE_AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""Says nothing about the rows: the same may go well later. Full disks, restarts and deadlocks among them."""

SCHEMA_GONE: Final = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""Of a generation: somebody dropped it."""

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: what readers' languages can hold."""

WRITER: Final[Mapping[str, str]] = {
    # What is lost with a crash of the database is projected again, from the stored positions.
    "synchronous_commit": "off",
    # The plan of a statement is made when the tables are empty and kept: without these it would scan them for ever.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


async def connect(dsn: str, settings: ProjectorSettings, schema: str | None = None) -> asyncpg.Connection:
    of_writer: dict[str, str] = {}
    if schema is not None:
        idle_ms = int(1000 * settings.limits.transaction_idle_seconds)
        of_writer = {"search_path": schema, "idle_in_transaction_session_timeout": str(idle_ms), **WRITER}
    connection = await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=settings.postgres_command_timeout_seconds,
        server_settings={
            "application_name": f"threadlog-{settings.service}-{settings.instance}",
            **({"role": settings.postgres_role} if settings.postgres_role else {}),
            **of_writer,
        },
    )
    await set_jsonb_codec(connection)
    await connection.set_type_codec(
        "json", schema="pg_catalog", format="binary", encoder=_unchanged, decoder=_unchanged
    )
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", format="tuple", encoder=_encode_time, decoder=_decode_time
    )
    return connection


class Link:
    """One connection, made when it is needed and again after it broke. Not for use by two tasks at once."""

    def __init__(self, dsn: str, settings: ProjectorSettings, schema: str) -> None:
        self._dsn = dsn
        self._settings = settings
        self._schema = schema
        self._connection: asyncpg.Connection | None = None

    async def connection(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._dsn, self._settings, self._schema)
        return self._connection

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection. What says that the database is away comes out as StoreAwayError."""
        try:
            yield await self.connection()
        except DATABASE_AWAY as error:
            await self.close()  # whatever state it is in: the next try makes a new one
            raise StoreAwayError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            self._connection.terminate()


def columns_of(rows: Sequence[Sequence[object]]) -> Iterable[list[object]]:
    """For statements that take their rows as an array per column."""
    return map(list, zip(*rows, strict=True))


def _unchanged(raw: bytes) -> bytes:
    return raw


def _encode_time(time_ms: int) -> tuple[int]:
    return (min(time_ms, TIME_MS_MAX) * 1000 - POSTGRES_EPOCH_US,)


def _decode_time(stored: tuple[int]) -> int:
    return (stored[0] + POSTGRES_EPOCH_US) // 1000
