"""`threadlog artifacts check` and `collect` look after the store of THREADLOG_ARTIFACTS_URL; see docs/artifacts.md."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeVar

import typer

from schemas.errors import ThreadlogError

if TYPE_CHECKING:
    from services.chassis.artifacts.care import References
    from services.chassis.artifacts.store import ArtifactStore

FLAWED: Final = 1
"""Exit status if an artifact is missing, altered or unreadable."""
NOT_DONE: Final = 2
"""Exit status if it could not be checked."""
SHOWN_MAX: Final = 100
"""Flaws that are listed one by one."""

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Find missing artifacts, and remove those that nothing names.")

Tenant = Annotated[str | None, typer.Option(help="Only artifacts of this tenant.")]
ViewsSeconds = Annotated[float, typer.Option(min=0, help="Seconds to wait until the views reach the end of the log.")]


@app.command("check")
def check_command(
    tenant: Tenant = None,
    read: Annotated[bool, typer.Option(help="Read each object and compare its content with its hash.")] = True,
    views_seconds: ViewsSeconds = 60,
) -> None:
    """Find artifacts that events name and that are missing, altered or unreadable.

    Exits with 0 if all exist, 1 if some do not, 2 if it could not be checked.
    """
    from services.chassis.artifacts.care import check

    done = _run(lambda store, references: check(store, references, tenant, read=read), views_seconds)
    for flaw in done.flaws[:SHOWN_MAX]:
        named = flaw.reference
        print(f"{named.tenant}  {named.sha256}  {flaw.what}  (named by {named.thread} at {named.seq})")
    if done.flawed > SHOWN_MAX:
        print(f"… and {done.flawed - SHOWN_MAX} more")
    flawed = f"{done.flawed} of them are missing, altered or unreadable"
    print(f"{done.objects} artifacts with {done.size} bytes are named; {flawed}")
    _end(FLAWED if done.flawed else 0)


@app.command("collect")
def collect_command(
    tenant: Tenant = None,
    grace_seconds: Annotated[
        float | None, typer.Option(min=0, help="Grace time in seconds [default: THREADLOG_ARTIFACTS_GRACE_SECONDS].")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be removed, and remove nothing.")
    ] = False,
    views_seconds: ViewsSeconds = 60,
) -> None:
    """Set aside what nothing has named or touched for the grace time, and delete what was set aside for as long again.

    Run it now and then, such as daily; it may run while services do.
    """
    from services.chassis.artifacts.care import collect
    from services.chassis.settings import Settings

    grace = Settings().artifacts_grace_seconds if grace_seconds is None else grace_seconds
    done = _run(
        lambda store, references: collect(store, references, grace, tenant, dry_run=dry_run),
        views_seconds,
    )
    would = "would be " if dry_run else ""
    print(
        f"{done.looked_at} objects: {done.set_aside} {would}set aside, {done.taken_back} {would}taken back, "
        f"{done.deleted} with {done.deleted_bytes} bytes {would}deleted"
    )
    _end(0)


def _run(work: Callable[["ArtifactStore", "References"], Awaitable[T]], views_seconds: float) -> T:
    """Run the work with the store and what names artifacts. Every expected error becomes one line and exit status 2."""
    import asyncpg

    async def done() -> T:
        from services.chassis.artifacts.object_store import open_artifacts
        from services.chassis.kafka.kafka_log import KafkaLog
        from services.chassis.process.telemetry import configure_logging
        from services.chassis.settings import Settings
        from services.cli.artifacts.references import viewed_references

        settings = Settings()
        configure_logging(settings.log_format, "artifacts", settings.instance, "warning")
        log = await KafkaLog.open(settings, "artifacts")
        try:
            async with viewed_references(settings, log, views_seconds) as references:
                return await work(open_artifacts(settings), references)
        finally:
            await log.close()

    try:
        return asyncio.run(done())
    except KeyboardInterrupt:
        _end(130)
    except (ThreadlogError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        sys.stderr.write(f"threadlog: {error}\n")
        _end(NOT_DONE)


def _end(status: int) -> NoReturn:
    """End the process at once, without shutting the interpreter down.

    A thread of obstore may still be at the end of the last request, and aborts the process if it needs the interpreter
    while that shuts down (pyo3-async-runtimes, issue 40): under load one check in twenty ended with SIGABRT.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
