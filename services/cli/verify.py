"""`threadlog verify` folds the log again and compares the views with the result."""

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schemas.errors import ThreadlogError
from schemas.ids import parse_key

if TYPE_CHECKING:
    from services.projector.verification.report import Finding, Progress, Report

DIFFERENT: Final = 1
"""Exit status if something differs."""
NOT_VERIFIED: Final = 2
"""Exit status if it could not be verified."""
STOPPED: Final = 128 + signal.SIGTERM
"""Exit status after SIGTERM."""
VALUE_CHARACTERS: Final = 200
"""Longest value that is printed for people."""


def verify_command(
    thread: Annotated[str | None, typer.Option(help="Verify one thread, named TENANT/THREAD.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify all threads.")] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="PARTITION:OFFSET of a record whose wrong hash is known. May be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Fold the log again and compare hashes, chains and views with it. Services may run meanwhile.

    Exits with 0 if everything is equal, 1 if something differs, 2 if it could not be verified.
    """
    import asyncpg

    if (thread is None) != everything:
        raise typer.BadParameter("give either --all or --thread TENANT/THREAD")
    try:
        report = asyncio.run(_verify(thread, accept or []))
    except KeyboardInterrupt:
        sys.exit(130)
    except asyncio.CancelledError:
        sys.exit(STOPPED)
    except (ThreadlogError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        sys.stderr.write(f"threadlog: it could not be verified: {error}\n")
        sys.exit(NOT_VERIFIED)
    print(json.dumps(report.to_json(), indent=2) if as_json else describe(report))
    sys.exit(DIFFERENT if report.findings else 0)


async def _verify(thread: str | None, accept: list[str]) -> "Report":
    """Verify under a handler for SIGTERM, so that the scratch generation is dropped even if a supervisor stops the
    process.
    """
    from services.chassis.kafka.kafka_log import KafkaLog
    from services.chassis.postgres.database_setup import require_database
    from services.chassis.process.telemetry import configure_logging
    from services.projector.settings import ProjectorSettings
    from services.projector.verification.verify import VerifyRequest, accepted_of, verify

    asked = VerifyRequest(None if thread is None else parse_key(thread.encode()), accepted_of(accept))
    settings = ProjectorSettings()
    configure_logging(settings.log_format, "verify", settings.instance, "warning")
    task = asyncio.current_task()
    assert task is not None
    # So that the scratch generation is dropped.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await require_database(settings, ("projector",))
    log = await KafkaLog.open_to_read(settings, "verify")
    try:
        return await verify(log, settings.postgres_dsn, settings, _show, asked)
    finally:
        await log.close()


def describe(report: "Report") -> str:
    """Return the report as text: what was compared, the first difference, the first of each other kind, and the
    counts.
    """
    what = report.thread or "all threads"
    lines = [
        f"{what}: {report.records} records of the log, up to where generation {report.generation} is",
        f"compared {sum(report.rows.values())} rows in {report.seconds:.1f} s",
    ]
    first = report.first
    if first is None:
        return "\n".join([*lines, "the views equal the log"])
    lines += [f"{report.findings} differences; the first:", *_described(first)]
    rest = [finding for finding in report.firsts if finding is not first]
    if rest:
        lines += ["the first of each other kind:", *[line for finding in rest for line in _described(finding)]]
    counts = [f"{check} {count}" for check, count in report.by_check.items()]
    views = ", ".join([f"{view} {count}" for view, count in report.by_view.items()])
    of_views = f" ({views})" if views else ""
    return "\n".join([*lines, f"in all: {', '.join(counts)}{of_views}"])


def _described(finding: "Finding") -> list[str]:
    """Return the lines for one difference: where it is, and what each side says."""
    named = {"tenant": finding.tenant, "thread": finding.thread} | dict(finding.key or {})
    where = [f"{name} {value}" for name, value in named.items() if value is not None]
    lines = [f"  {finding.check}: {finding.what}", f"    at {', '.join(where)}"]
    if finding.log_says is not None or finding.view_says is not None:
        other = "the view has" if finding.check == "view" else "it names   "
        lines += [f"    the log has  {_short(finding.log_says)}", f"    {other} {_short(finding.view_says)}"]
    return lines


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}…"


def _show(progress: "Progress") -> None:
    """Draw the progress on a terminal."""
    if not sys.stderr.isatty():
        return
    share = progress.records_done / progress.records_total if progress.records_total else 1.0
    of_view = f"  {progress.view}" if progress.view else ""
    end = "\n" if progress.phase == "done" else ""
    text = f"{progress.phase:<10} {share:>4.0%}  {progress.records_done} of {progress.records_total} records{of_view}"
    sys.stderr.write(f"\r{text:<78}{end}")
    sys.stderr.flush()
