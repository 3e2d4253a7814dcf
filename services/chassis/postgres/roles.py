"""The database roles: groups without a login, of which the operator's logins are made members.

Roles belong to the whole server, so several databases of it share them. They are only ever made and checked here, never
changed or dropped: what an administrator has done to them is theirs.
"""

import asyncio
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg

from services.chassis.errors import SetupError
from services.chassis.postgres.sql_files import SqlFiles

PROJECTOR: Final = "threadlog_projector"
"""Owns the generations of the views. BYPASSRLS, because COPY into a table is refused to whoever its policies bind."""
RUNTIME: Final = "threadlog_runtime"
EXECUTOR: Final = "threadlog_executor"
ROLLUPS: Final = "threadlog_rollups"
"""Writes the operations windows."""
INGEST: Final = "threadlog_ingest"
"""Looks up API keys. What it reads of the views it reads as one of the next two."""
READER: Final = "threadlog_reader"
"""Sees the rows of the tenant in `app.tenant_id`, and without one none."""
OPERATOR: Final = "threadlog_operator"
"""Sees the rows of all tenants."""
KEYS: Final = "threadlog_keys"
"""Makes and revokes API keys: `threadlog keys`."""

ROLES: Final = (PROJECTOR, RUNTIME, EXECUTOR, ROLLUPS, INGEST, READER, OPERATOR, KEYS)
MEMBERS: Final = ((READER, INGEST), (OPERATOR, INGEST))
"""Group and member. The member has to take the group's role on: it inherits nothing."""

VERSION_MIN: Final = 150_000
"""Of Postgres: views that check the rights of who reads them came with 15."""
TRIES_MAX: Final = 20
TRY_AGAIN_SECONDS: Final = 0.05

_MET_ANOTHER: Final = (
    asyncpg.DuplicateObjectError,
    asyncpg.UniqueViolationError,
    asyncpg.InternalServerError,  # "tuple concurrently updated"
)
"""Another migration does the same at this moment, from another database."""


class RolesError(SetupError):
    """The roles cannot be made, or are not as they have to be; the text says what to do."""


async def create_roles(connection: asyncpg.Connection) -> None:
    """What is missing; where nothing is, nothing is written. Raise RolesError where they may do more than they should.

    `connection` must not be in a transaction: each try is one of its own.
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
        # Whoever migrates hands schemas over to it, and drops and re-points what it owns.
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
    """As a statement names it."""
    login: str = await connection.fetchval("select quote_ident(session_user)")
    return login


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


async def check_roles(connection: asyncpg.Connection) -> None:
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
