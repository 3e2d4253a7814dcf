"""`threadlog migrate`, `rebuild` and `keys`: what is done to the database of THREADLOG_POSTGRES_DSN."""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, TypeVar

import asyncpg
import typer

import services.ingest
import services.projector
from schemas.errors import ThreadlogError
from services.chassis.kafka import KafkaLog
from services.chassis.log_metrics import LogCounts
from services.chassis.migrations import migrate as run_migrations
from services.chassis.settings import Settings
from services.chassis.sql_files import SqlFiles
from services.ingest.api_keys import create_key, revoke_key
from services.ingest.auth import SCOPES
from services.projector.rebuild import Progress, rebuild
from services.projector.settings import ProjectorSettings

OWNERS: Final = {
    "projector": Path(services.projector.__path__[0], "migrations"),
    "ingest": Path(services.ingest.__path__[0], "migrations"),
}
INGEST_SQL: Final = Path(services.ingest.__path__[0], "sql")

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="API keys.")


def migrate_command() -> None:
    """Bring what is not a view up to date: generations, API keys."""
    applied = _run(migrate_all(Settings()))
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("nothing to apply")


async def migrate_all(settings: Settings) -> list[str]:
    async with _connection(settings) as connection:
        return [
            f"{owner}/{name}"
            for owner, folder in OWNERS.items()
            for name in await run_migrations(connection, owner, folder)
        ]


def rebuild_command(
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the generation that was live.")] = False,
) -> None:
    """Build the views anew from the beginning of the log, beside the live ones, and swap."""
    generation = _run(_rebuild(ProjectorSettings(), keep_old=keep_old))
    print(f"generation {generation} is live")


async def _rebuild(settings: ProjectorSettings, *, keep_old: bool) -> int:
    log = await KafkaLog.open(settings, "rebuild", LogCounts())
    try:
        generation = await rebuild(log, settings.postgres_dsn, settings, _show_progress, keep_old=keep_old)
        return generation.number
    finally:
        await log.close()


def _show_progress(progress: Progress) -> None:
    share = progress.records_done / progress.records_total if progress.records_total else 1.0
    end = "\n" if progress.phase == "done" else ""
    sys.stderr.write(
        f"\r{progress.phase:<9} {share:>4.0%}  {progress.records_done} of {progress.records_total} records, "
        f"{progress.records_per_second:,.0f}/s  {end}"
    )
    sys.stderr.flush()


@keys.command("create")
def create_command(
    tenant: Annotated[str, typer.Option(help="Whose threads the key may touch.")],
    subject: Annotated[str, typer.Option(help="Who acts with it, as records show it.")],
    scope: Annotated[list[str], typer.Option(help=f"One or more of {', '.join(sorted(SCOPES))}.")],
) -> None:
    """Make a key and show it, once."""
    print(_run(_create_key(Settings(), tenant, subject, scope)))


@keys.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(help="The part of the key between tl_ and the next _.")],
) -> None:
    """End a key. Processes that remember it refuse it a little later."""
    if not _run(_revoke_key(Settings(), key_id)):
        sys.exit(f"threadlog: there is no valid key {key_id}")
    print(f"revoked {key_id}")


async def _create_key(settings: Settings, tenant: str, subject: str, scopes: list[str]) -> str:
    async with _connection(settings) as connection:
        return await create_key(connection, SqlFiles(INGEST_SQL), tenant=tenant, subject=subject, scopes=scopes)


async def _revoke_key(settings: Settings, key_id: str) -> bool:
    async with _connection(settings) as connection:
        return await revoke_key(connection, SqlFiles(INGEST_SQL), key_id)


@asynccontextmanager
async def _connection(settings: Settings) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(settings.postgres_dsn, timeout=settings.postgres_connect_timeout_seconds)
    try:
        yield connection
    finally:
        await connection.close()


def _run(work: Coroutine[None, None, T]) -> T:
    try:
        return asyncio.run(work)
    except (ThreadlogError, asyncpg.PostgresError, OSError) as error:
        sys.exit(f"threadlog: {error}")
