"""`threadlog migrate` and `threadlog keys` change the database of THREADLOG_POSTGRES_DSN.

What a command needs is imported when it runs: a chat does not wait for a web framework.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from schemas.errors import ThreadlogError

if TYPE_CHECKING:
    import asyncpg

    from services.chassis.settings import Settings


PASSES_POLICIES_BY: Final = "select rolsuper or rolbypassrls from pg_roles where rolname = session_user"
"""Asks whether the login may read past row security."""

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="Create and revoke API keys.")


def migrate_command() -> None:
    """Apply the migrations: roles, rights, and tables that are not views. Views are rebuilt instead."""
    from services.chassis.settings import Settings

    applied = _run(migrate_all(Settings()))
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("nothing to apply")


async def migrate_all(settings: "Settings") -> list[str]:
    """Apply the migrations of all owners in their order, give older generations their rights, and return the names of
    what was applied. Applying them again does nothing.
    """
    from services.chassis.postgres.migrations import MIGRATIONS, migrate
    from services.projector.generations.rights import bind_generations

    async with _connection(settings) as connection:
        applied = [
            f"{owner}/{name}"
            for owner, folder in MIGRATIONS.items()
            for name in await migrate(connection, owner, folder)
        ]
        bound = await bind_generations(connection)
        if bound and not await connection.fetchval(PASSES_POLICIES_BY):
            login = await connection.fetchval("select session_user")
            print(
                f"threadlog: {', '.join(bound)} is bound by row security now. Services of the release before act as "
                f"their login, and need one that passes it by until they are replaced: `alter role {login} bypassrls`",
                file=sys.stderr,
            )
    return applied


@keys.command("create")
def create_command(
    tenant: Annotated[str, typer.Option(help="Tenant whose threads the key may use.")],
    subject: Annotated[str, typer.Option(help="Name that records show for whoever uses the key.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="threads:read, threads:write, tools:decide, artifacts:read, artifacts:write or ops. May be repeated."
        ),
    ],
) -> None:
    """Create a key and print it. It cannot be shown again."""
    print(_run(_create_key(tenant, subject, scope)))


async def _create_key(tenant: str, subject: str, scopes: list[str]) -> str:
    """Create the key in the role that may write keys and nothing else."""
    from services.chassis.postgres.roles import KEYS
    from services.chassis.settings import Settings
    from services.ingest.api_keys import create_key
    from services.ingest.database import statements

    sql = statements()
    async with _connection(Settings(), KEYS) as connection:
        return await create_key(connection, sql, tenant=tenant, subject=subject, scopes=scopes)


@keys.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(help="The part of the key between tl_ and the next _.")],
) -> None:
    """Revoke a key. Running processes refuse it within THREADLOG_INGEST_KEY_CACHE_SECONDS."""
    if not _run(_revoke_key(key_id)):
        sys.exit(f"threadlog: there is no valid key {key_id}")
    print(f"revoked {key_id}")


async def _revoke_key(key_id: str) -> bool:
    """Revoke the key, and return whether it was valid."""
    from services.chassis.postgres.roles import KEYS
    from services.chassis.settings import Settings
    from services.ingest.api_keys import revoke_key
    from services.ingest.database import statements

    async with _connection(Settings(), KEYS) as connection:
        return await revoke_key(connection, statements(), key_id)


@asynccontextmanager
async def _connection(settings: "Settings", role: str = "") -> AsyncIterator["asyncpg.Connection"]:
    """Yield a connection. Raises SetupError, which says what to do, for every reason why the database refuses it."""
    import asyncpg

    from services.chassis.postgres.connections import CONNECT_TIMEOUT_SECONDS
    from services.chassis.postgres.database_setup import DatabaseSetupError, connect, explain

    connection = await connect(settings, role)
    try:
        yield connection
    except (asyncpg.PostgresError, OSError) as error:
        raise DatabaseSetupError(explain(error, settings, role)) from error
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


def _run(work: Coroutine[None, None, T]) -> T:
    """Run the work. Every expected error becomes one line and exit status 1."""
    import asyncpg

    try:
        return asyncio.run(work)
    except (ThreadlogError, asyncpg.PostgresError, OSError) as error:
        sys.exit(f"threadlog: {error}")
