"""Connections to the projector's database: their role, their types, and which of their errors may pass.

A connection that writes a generation has its schema first on the search path, so that the statements need not name it.
Times go in as milliseconds since 1970, json and jsonb as the bytes of their JSON: as the projections make them.

Errors fall into three classes. `DATABASE_AWAY` may pass: the work is tried again. `SCHEMA_GONE` says that somebody
dropped the generation. What remains is about the rows themselves, see `postgres_store`.
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
"""Errors that say nothing about the rows: the same work may succeed later. Full disks, restarts and deadlocks
are here.
"""

SCHEMA_GONE: Final = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""Errors of a generation that somebody dropped."""

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""The beginning of the year 2000, from which Postgres counts, in microseconds since 1970."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that the languages of readers can represent."""

WRITER: Final[Mapping[str, str]] = {
    # A crash of the database may lose the last commits. Positions are lost with their rows, so the records are read
    # and projected again.
    "synchronous_commit": "off",
    # The plan of a statement is made while the tables are empty, and kept: without these settings it would scan the
    # tables for ever.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


async def connect(dsn: str, settings: ProjectorSettings, schema: str | None = None) -> asyncpg.Connection:
    """Connect in the role of the settings. A `schema` is first on the search path, with the settings of a writer."""
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
    """One connection, made when it is needed, and made again after it broke. Only one task may use it at a time."""

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
        """Yield the connection. An error that may pass becomes StoreAwayError."""
        try:
            yield await self.connection()
        except DATABASE_AWAY as error:
            await self.close()  # its state is unknown: the next try makes a new one
            raise StoreAwayError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            self._connection.terminate()


def columns_of(rows: Sequence[Sequence[object]]) -> Iterable[list[object]]:
    """Return the rows as one list per column, for statements that take arrays."""
    return map(list, zip(*rows, strict=True))


def _unchanged(raw: bytes) -> bytes:
    return raw


def _encode_time(time_ms: int) -> tuple[int]:
    return (min(time_ms, TIME_MS_MAX) * 1000 - POSTGRES_EPOCH_US,)


def _decode_time(stored: tuple[int]) -> int:
    return (stored[0] + POSTGRES_EPOCH_US) // 1000
