"""`threadlog rebuild` and `threadlog generations`: the builds of the views in the database of THREADLOG_POSTGRES_DSN.

Progress is a bar on a terminal and lines of JSON elsewhere, and metrics where THREADLOG_PROBES_PORT is set. Ctrl-C or
SIGTERM stops a rebuild with status 130; the next one goes on with it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import orjson
import typer

from schemas.errors import ThreadlogError

if TYPE_CHECKING:
    from services.chassis.log.port import Log
    from services.projector.generations.store import Generation
    from services.projector.rebuilding.generation_list import Kept
    from services.projector.rebuilding.progress import OnProgress, Progress
    from services.projector.settings import ProjectorSettings

STOPPED_STATUS: Final = 130
"""Exit status after Ctrl-C or SIGTERM, as shells have it for SIGINT."""
SAID_EVERY_SECONDS: Final = 1.0
"""Pause between two lines of JSON: enough for a program, not too many for a log."""
DRAWN_EVERY_SECONDS: Final = 0.1
"""Pause between two drawings of the bar."""
BAR_CELLS: Final = 30
"""Width of the bar."""

T = TypeVar("T")
Work = Callable[["Log", "ProjectorSettings", "OnProgress"], Awaitable["Generation"]]

generations = typer.Typer(
    no_args_is_help=True, help="List, restore and remove generations of the views; see docs/operations.md."
)


def rebuild_command(
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Number of processes; each one fills its own partitions.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Limit on records per second, of all workers together.")
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Swap only if the new views equal the live ones at the same position.")
    ] = True,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep the generation that was live, so that `generations use` can restore it."),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from nothing, even if an earlier rebuild is unfinished.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Swap even if the comparison finds differences.")] = False,
    new_log: Annotated[
        bool,
        typer.Option(
            "--new-log", help="Accept that the topic was created again, perhaps with another number of partitions."
        ),
    ] = False,
) -> None:
    """Build the views from the beginning of the log, beside the live ones, and swap. Continues an unfinished build."""
    from services.projector.rebuilding.rebuild import rebuild

    changed: dict[str, Any] = {}
    if workers is not None:
        changed["projector_rebuild_workers"] = workers
    if rate is not None:
        changed["projector_rebuild_records_per_second_max"] = rate

    async def work(log: "Log", settings: "ProjectorSettings", on_progress: "OnProgress") -> "Generation":
        options = {"compare": compare, "keep_old": keep, "restart": restart, "force": force, "new_log": new_log}
        return await rebuild(log, settings.postgres_dsn, settings, on_progress, **options)

    _fill(work, changed, "the next `threadlog rebuild` continues it")


@generations.command("list")
def list_command() -> None:
    """List generations with their version, progress and size on disk."""
    from services.projector.rebuilding.generation_list import list_generations
    from services.projector.settings import ProjectorSettings

    settings = ProjectorSettings()
    kept = _run(list_generations(settings.postgres_dsn, settings))
    rows: list[tuple[str, ...]] = [
        ("number", "status", "fold", "projection", "created", "live since", "records", "MiB")
    ]
    rows += [_row(one) for one in kept]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip())


@generations.command("use")
def use_command(
    number: Annotated[int, typer.Argument(help="Number of the generation, from `threadlog generations list`.")],
) -> None:
    """Restore a kept generation: it catches up with the log and becomes live. The generation that was live is kept."""
    from services.projector.rebuilding.generation_list import use_generation

    async def work(log: "Log", settings: "ProjectorSettings", on_progress: "OnProgress") -> "Generation":
        return await use_generation(log, settings.postgres_dsn, settings, on_progress, number)

    _fill(work, {}, "the live generation has not changed")


@generations.command("drop")
def drop_command(
    number: Annotated[int, typer.Argument(help="Number of the generation, from `threadlog generations list`.")],
) -> None:
    """Remove a generation that is not live, and free its disk space."""
    from services.projector.rebuilding.generation_list import remove_generation
    from services.projector.settings import ProjectorSettings

    settings = ProjectorSettings()
    _run(remove_generation(settings.postgres_dsn, settings, number))
    print(f"dropped generation {number}")


def _fill(work: Work, changed: dict[str, Any], if_stopped: str) -> None:
    """Run work that builds a generation, and show its progress: as a bar on a terminal, as lines of JSON elsewhere.
    Ends the process with 130 if a signal stopped it.
    """
    from services.chassis.process.telemetry import configure_logging
    from services.projector.settings import ProjectorSettings

    settings = ProjectorSettings().model_copy(update=changed)
    is_terminal = sys.stdout.isatty()
    level = "warning" if is_terminal else settings.log_level  # what goes well shows in the bar
    configure_logging("console" if is_terminal else settings.log_format, "rebuild", settings.instance, level)
    generation = _run(_with_log(work, settings, Bar() if is_terminal else Lines()))
    if generation is None:
        print(f"\nthreadlog: stopped; {if_stopped}", file=sys.stderr)
        sys.exit(STOPPED_STATUS)
    if is_terminal:
        print(f"generation {generation.number} is live")


async def _with_log(work: Work, settings: "ProjectorSettings", on_progress: "OnProgress") -> "Generation | None":
    """Return the generation that is live now, or None if a signal stopped the work. A second signal ends the
    process.
    """
    from prometheus_client import CollectorRegistry

    from services.chassis.kafka.kafka_log import KafkaLog
    from services.chassis.process.probes import Probes
    from services.projector.metrics import RebuildMetrics

    registry = CollectorRegistry()
    metrics, probes = RebuildMetrics.register(registry), None

    def told(progress: "Progress") -> None:
        progress.show_in(metrics)
        on_progress(progress)

    loop = asyncio.get_running_loop()
    working = asyncio.current_task()
    assert working is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        working.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        log = await KafkaLog.open_to_read(settings, "rebuild")
        try:
            if settings.probes_port:
                probes = await Probes.start(
                    settings.probes_host, settings.probes_port, registry, not_ready=lambda: None
                )
            return await work(log, settings, told)
        finally:
            if probes is not None:
                await probes.close()
            await log.close()
    except asyncio.CancelledError:
        if not stopped:
            raise
        return None


class Bar:
    """Draws progress on a terminal, in one line that is written over."""

    def __init__(self) -> None:
        self._drawn_at = float("-inf")
        self._drawn_phase = ""

    def __call__(self, progress: "Progress") -> None:
        is_due = progress.seconds - self._drawn_at >= DRAWN_EVERY_SECONDS
        if not is_due and progress.phase == self._drawn_phase and not progress.differences:
            return
        self._drawn_at, self._drawn_phase = progress.seconds, progress.phase
        _say(f"\r\x1b[K{bar(progress)}", end="\n" if progress.phase == "done" else "")
        for difference in progress.differences:
            _say(f"\n  differs: {difference}", end="")


class Lines:
    """Writes progress elsewhere: a line of JSON every second and for each change of phase."""

    def __init__(self) -> None:
        self._said_at = float("-inf")
        self._said: tuple[str, bool] | None = None

    def __call__(self, progress: "Progress") -> None:
        is_due = progress.seconds - self._said_at >= SAID_EVERY_SECONDS
        about = (progress.phase, progress.is_paused)
        if not is_due and about == self._said and not progress.differences:
            return
        self._said_at, self._said = progress.seconds, about
        _say(orjson.dumps(_as_json(progress)).decode())


def _say(text: str, end: str = "\n") -> None:
    """Print, even if nobody reads any more: a closed pipe must not end a rebuild that has run for hours."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:  # nobody listens any more, and the work goes on
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def bar(progress: "Progress") -> str:
    """Return the line that a terminal shows: phase, share, records, rate, and the time left while records are read."""
    share = progress.records_done / progress.records_total if progress.records_total else 1.0
    full = int(share * BAR_CELLS)
    left = progress.seconds_left
    parts = [
        f"{progress.phase:<9} [{'#' * full}{'.' * (BAR_CELLS - full)}] {share:>4.0%}",
        f"{progress.records_done:,} of {progress.records_total:,} records",
        f"{progress.records_per_second:,.0f}/s",
    ]
    if progress.is_paused:
        parts.append("paused: the live views are behind")
    elif left is not None and progress.phase == "reading":
        parts.append(f"{_duration(left)} left")
    return "  ".join(parts)


def _as_json(progress: "Progress") -> dict[str, Any]:
    """Return the same as an object. Its names are a contract for programs that run rebuilds."""
    left = progress.seconds_left
    return {
        "phase": progress.phase,
        "generation": progress.generation,
        "records_done": progress.records_done,
        "records_total": progress.records_total,
        "records_per_second": round(progress.records_per_second, 1),
        "seconds": round(progress.seconds, 1),
        "seconds_left": None if left is None else round(left, 1),
        "paused": progress.is_paused,
        "differences": [str(difference) for difference in progress.differences],
    }


def _duration(seconds: float) -> str:
    """Return seconds as h:mm:ss or m:ss."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _row(kept: "Kept") -> tuple[str, ...]:
    """Return the cells of a generation. A generation whose schema is gone says so instead of showing a size of
    nothing.
    """
    generation = kept.generation
    return (
        str(generation.number),
        kept.status if kept.size_bytes is not None else f"{kept.status}, its schema was dropped",
        str(generation.fold_version),
        str(generation.projection_version),
        _moment(kept.created_ms),
        "" if kept.live_since_ms is None else _moment(kept.live_since_ms),
        f"{sum(kept.positions.values()):,}",
        "" if kept.size_bytes is None else f"{kept.size_bytes / 1_048_576:,.1f}",
    )


def _moment(time_ms: int) -> str:
    from schemas.envelope import format_time

    return format_time(time_ms)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run the work after checking that the database is the right one. Every expected error becomes one line and exit
    status 1.
    """
    import asyncpg
    import uvloop

    from services.chassis.postgres.database_setup import explain, require_database
    from services.projector.settings import ProjectorSettings

    settings = ProjectorSettings()

    async def awaited() -> T:
        try:
            await require_database(settings, ("projector",))
        except ThreadlogError:
            work.close()
            raise
        return await work

    try:
        return uvloop.run(awaited())
    except ThreadlogError as error:
        message = str(error)
    except (asyncpg.PostgresError, OSError) as error:
        message = explain(error, settings, settings.postgres_role)
    if sys.stdout.isatty():
        print()
    sys.exit(f"threadlog: {message}")
