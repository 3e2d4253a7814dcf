"""The database roles: groups without a login. An administrator makes the logins of services members of them.

Roles belong to the whole server, so its databases share them. They are only created and checked here, never changed or
dropped: what an administrator has done to a role was meant. A role that may do more than it should is an error, because
the separation of tenants depends on it.
"""

import asyncio
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg

from services.chassis.errors import SetupError
from services.chassis.postgres.sql_files import SqlFiles

PROJECTOR: Final = "threadlog_projector"
"""Owns the generations of the views. It has BYPASSRLS, because Postgres refuses COPY to a role that policies bind."""
RUNTIME: Final = "threadlog_runtime"
"""Reads the states and transcripts of all tenants, and writes nothing."""
EXECUTOR: Final = "threadlog_executor"
"""Reads the states of all tenants, and writes nothing."""
ROLLUPS: Final = "threadlog_rollups"
"""Writes the operations windows."""
INGEST: Final = "threadlog_ingest"
"""Looks up API keys. It reads the views as one of the next two roles."""
READER: Final = "threadlog_reader"
"""Sees the rows of the tenant in `app.tenant_id`, and no rows if that is not set."""
OPERATOR: Final = "threadlog_operator"
"""Sees the rows of all tenants."""
KEYS: Final = "threadlog_keys"
"""Makes and revokes API keys: `threadlog keys`."""

ROLES: Final = (PROJECTOR, RUNTIME, EXECUTOR, ROLLUPS, INGEST, READER, OPERATOR, KEYS)
MEMBERS: Final = ((READER, INGEST), (OPERATOR, INGEST))
"""Group and member. The member inherits nothing: it must `set role` to the group, in each transaction anew."""

VERSION_MIN: Final = 150_000
"""The oldest Postgres that suffices: version 15 introduced views that check the rights of their reader."""
TRIES_MAX: Final = 20
"""Times that creating roles is tried while others create them, too. Theirs is over within a try or two."""
TRY_AGAIN_SECONDS: Final = 0.05
"""Pause between two tries."""

_MET_ANOTHER: Final = (
    asyncpg.DuplicateObjectError,
    asyncpg.UniqueViolationError,
    asyncpg.InternalServerError,  # "tuple concurrently updated"
)
"""Errors that mean that a migration of another database creates the same roles at this moment."""


class RolesError(SetupError):
    """The roles cannot be created, or are not as they must be. The text says what to do."""


async def create_roles(connection: asyncpg.Connection) -> None:
    """Create the roles that are missing. If none is, nothing is written, so a login without the right may run it.

    `connection` must not be in a transaction: each try is one of its own. Raise RolesError, also if a role may do more
    than it should.
    """
    await check_version(connection)
    for _ in range(TRIES_MAX):
        try:
            await _create_missing(connection)
            break
        except _MET_ANOTHER:
            await asyncio.sleep(TRY_AGAIN_SECONDS)
    else:
        raise RolesError("the roles could not be made: others change them all the time; run `threadlog migrate` again")
    await check_roles(connection)


async def check_version(connection: asyncpg.Connection) -> None:
    """Raise RolesError if this Postgres is too old."""
    version = await connection.fetchval("select current_setting('server_version_num')::int")
    if version < VERSION_MIN:
        raise RolesError(f"this is Postgres {version // 10_000}; threadlog needs {VERSION_MIN // 10_000} or newer")


async def _create_missing(connection: asyncpg.Connection) -> None:
    sql = _sql()
    there = {row["rolname"] for row in await connection.fetch(sql["roles"], ROLES)}
    for role in ROLES:
        if role not in there:
            statement = f"create role {role} nologin noinherit{' bypassrls' if role == PROJECTOR else ''}"
            await _as_administrator(connection, statement)
    members = {tuple(row) for row in await connection.fetch(sql["role_members"], ROLES)}
    for group, member in MEMBERS:
        if (group, member) not in members:
            await _as_administrator(connection, f"grant {group} to {member}")
    if not await connection.fetchval(sql["role_is_mine"], PROJECTOR):
        # A migration hands schemas over to this role, and drops and re-points what the role owns.
        await _join_projector(connection)


async def _as_administrator(connection: asyncpg.Connection, statement: str) -> None:
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        login, reason = await _login(connection), _first_line(error)
        raise RolesError(
            f"the login {login} may not `{statement}` ({reason}); let an administrator run it, and "
            f"`grant {PROJECTOR} to {login}`, once for this server, then run `threadlog migrate` again"
        ) from error


async def _join_projector(connection: asyncpg.Connection) -> None:
    try:
        await connection.execute(f"grant {PROJECTOR} to current_user")
    except asyncpg.InsufficientPrivilegeError as error:
        login, reason = await _login(connection), _first_line(error)
        raise RolesError(
            f"the login {login} is no member of {PROJECTOR} and may not make itself one ({reason}); let an "
            f"administrator `grant {PROJECTOR} to {login}`, once for this server, then run `threadlog migrate` again"
        ) from error


async def _login(connection: asyncpg.Connection) -> str:
    """Return the login's name, quoted as a statement needs it."""
    login: str = await connection.fetchval("select quote_ident(session_user)")
    return login


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def check_roles(connection: asyncpg.Connection) -> None:
    """Raise RolesError if a role that exists may do more than it should, or less than it must."""
    sql = _sql()
    for row in await connection.fetch(sql["roles"], ROLES):
        role = row["rolname"]
        if row["rolsuper"]:
            raise RolesError(f"the role {role} is a superuser, which no policy binds: `alter role {role} nosuperuser`")
        if row["rolbypassrls"] and role != PROJECTOR:
            raise RolesError(f"the role {role} may bypass row security: `alter role {role} nobypassrls`")
        if not row["rolbypassrls"] and role == PROJECTOR:
            raise RolesError(
                f"the role {role} may not bypass row security, so it could not COPY into the views: let an "
                f"administrator `alter role {role} bypassrls`"
            )
    for row in await connection.fetch(sql["role_members"], ROLES):
        group, member = row
        if (group, member) not in MEMBERS:
            raise RolesError(
                f"the role {member} is a member of {group}, so it may do more than it should: "
                f"`revoke {group} from {member}`"
            )


@cache
def _sql() -> SqlFiles:
    return SqlFiles(Path(__file__).with_name("sql"))
