"""Check once, at the start of a service, whether it can work with its database.

Two answers are kept apart. A database that is away does not prevent a start: it may come back, and every read handles
its absence anyway. Everything else that is found here would go wrong again at the next start: a missing database, a
login without rights, missing migrations. Then the start fails with one line that says what to do (SetupError).
"""

import asyncio
import errno
import os
import re
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from services.chassis.errors import SetupError
from services.chassis.postgres.connections import CONNECT_TIMEOUT_SECONDS
from services.chassis.postgres.migrations import MIGRATIONS, MigrationError, check_migrations
from services.chassis.postgres.roles import check_roles, check_version
from services.chassis.settings import Settings

DSN: Final = "THREADLOG_POSTGRES_DSN"
PORT_MAX: Final = 65_535
"""The largest port of TCP."""
_PORT: Final = re.compile(r":(\d+)$")
UNKNOWN_HOST: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors of a look-up that mean that the host does not exist. Other errors may be temporary."""

AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it starts up, or shuts down
    asyncpg.InsufficientResourcesError,  # connections, memory, disk
    asyncpg.InternalClientError,
)


class DatabaseSetupError(SetupError):
    """The database is there, or is named, in a way that no waiting mends."""


class DatabaseAwayError(SetupError):
    """The database does not answer. A command gives up; a service starts all the same."""


async def check_database(settings: Settings, owners: Sequence[str], takes: Sequence[str] = ()) -> str | None:
    """Return why the database is away, or None if it answers and fits.

    It fits if the migrations of all `owners` are applied and the login may act as the roles in `takes`. Raise
    SetupError if a person has to do something first.
    """
    role = settings.postgres_role
    try:
        connection = await connect(settings, role)
    except DatabaseAwayError as away:
        return str(away)
    try:
        async with asyncio.timeout(settings.postgres_command_timeout_seconds):
            await check_version(connection)
            await _check_takes(connection, takes)
            for owner in owners:
                await check_migrations(connection, owner, MIGRATIONS[owner])
            await check_roles(connection)
    except MigrationError:
        raise
    except AWAY as error:
        return explain(error, settings, role)
    except asyncpg.PostgresError as error:
        raise DatabaseSetupError(explain(error, settings, role)) from error
    finally:
        connection.terminate()
    return None


async def require_database(settings: Settings, owners: Sequence[str], takes: Sequence[str] = ()) -> None:
    """Check the database for a command, which does not wait for it. Raise SetupError also if the database is away."""
    away = await check_database(settings, owners, takes)
    if away is not None:
        raise DatabaseAwayError(away)


async def connect(settings: Settings, role: str) -> asyncpg.Connection:
    """Connect as `role`, or as the login if it is empty. Raise DatabaseAwayError or DatabaseSetupError."""
    if not _has_possible_ports(settings.postgres_dsn):  # an event loop may cut the number to 16 bits, to another port
        raise DatabaseSetupError(explain(ValueError(), settings, role))
    try:
        return await asyncpg.connect(
            settings.postgres_dsn,
            timeout=CONNECT_TIMEOUT_SECONDS,
            command_timeout=settings.postgres_command_timeout_seconds,
            server_settings={"role": role} if role else {},
        )
    except AWAY as error:
        kind = DatabaseSetupError if _is_unknown_host(error) else DatabaseAwayError
        raise kind(explain(error, settings, role)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OverflowError) as error:
        raise DatabaseSetupError(explain(error, settings, role)) from error


def explain(error: BaseException, settings: Settings, role: str) -> str:
    """Return one line that says what is wrong with the database and what to do. It never contains a password."""
    user, where, name = target(settings.postgres_dsn)
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return f"{where} does not let {user} in ({_first_line(error)}); correct user or password in {DSN}"
        case asyncpg.InvalidCatalogNameError():
            return f"{where} has no database {name}; create it, or correct the name in {DSN}"
        case asyncpg.InvalidParameterValueError() if role and "role" in str(error):
            return f"the server at {where} has no role {role}; run `threadlog migrate`, which makes it"
        case asyncpg.InsufficientPrivilegeError() if "set role" in str(error):
            wanted = str(error).partition('"')[2].partition('"')[0] or role
            return (
                f"the login {user} is no member of the role {wanted}: let an administrator `grant {wanted} to {user}`,"
                f" or use another login in {DSN}"
            )
        case asyncpg.InsufficientPrivilegeError():
            return (
                f"the login {user} lacks rights in the database {name} ({_first_line(error)}); let its owner run "
                "`threadlog migrate`, which gives every role its rights"
            )
        case asyncpg.UndefinedTableError() | asyncpg.InvalidSchemaNameError():
            return f"the database {name} has no threadlog tables; run `threadlog migrate`"
        case asyncpg.DiskFullError():
            return f"the disk of the database at {where} is full; free some, then try again. Nothing was changed"
        case asyncpg.ReadOnlySQLTransactionError():
            return f"the database at {where} is a standby that takes no writes; name the primary in {DSN}"
        case asyncpg.TooManyConnectionsError():
            return f"the database at {where} has no connection left ({_first_line(error)})"
        case TimeoutError():
            seconds = CONNECT_TIMEOUT_SECONDS
            return f"the database at {where} does not answer within {seconds:g} s; correct {DSN}, or wait for it"
        case socket.gaierror() if _is_unknown_host(error):
            return f"there is no host {where}; correct it in {DSN}"
        case OSError():
            return f"no database answers at {where} ({_os_reason(error)}); start it, or correct host and port in {DSN}"
        case ValueError() | OverflowError() | asyncpg.InterfaceError():
            return f"{DSN} is no connection string such as postgresql://user:password@host:5432/database"
        case _:
            return f"the database {name} at {where} refuses: {_first_line(error)}"


def target(dsn: str) -> tuple[str, str, str]:
    """Return user, `host:port` and database name, as far as the connection string has them."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "?", "?", "?"
    query = parse_qs(parts.query)
    user = parts.username or query.get("user", [os.environ.get("PGUSER", "the default user")])[0]
    where = parts.netloc.rpartition("@")[2] or query.get("host", [os.environ.get("PGHOST", "localhost")])[0]
    if not where.startswith("/") and not _PORT.search(where):
        where += ":" + query.get("port", [os.environ.get("PGPORT", "5432")])[0]
    return user, where, parts.path.lstrip("/") or user


def _has_possible_ports(dsn: str) -> bool:
    """Return whether all ports in `host:port,host:port` are ports."""
    where = dsn.partition("://")[2].partition("/")[0].rpartition("@")[2]
    ports = [found[1] for host in where.split(",") if (found := _PORT.search(host))]
    return all(0 < int(port) <= PORT_MAX for port in ports)


def _is_unknown_host(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) and error.errno in UNKNOWN_HOST


def _os_reason(error: OSError) -> str:
    # asyncio joins the failures of several addresses into one error without a number, whose text repeats addresses.
    return os.strerror(error.errno) if error.errno and error.errno in errno.errorcode else "connection failed"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


async def _check_takes(connection: asyncpg.Connection, takes: Sequence[str]) -> None:
    """Act as each role once: Postgres alone knows whether this login may. Nothing stays of it after the transaction."""
    for role in takes:
        async with connection.transaction():
            await connection.execute(f"set local role {role}")
