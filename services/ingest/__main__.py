"""The ingest service: `threadlog services run ingest`. This module wires it; nothing else makes its parts.

`wire` makes every part and gives each group of routes just what it uses. `_serve` runs what has to run beside the
requests: the reader of the live topics, the tool catalog, the look for stuck threads, and the imports.

The order of the start matters: streams are opened before the port is, so that the first client finds them working. So
does the order of the end: readiness fails first, then streams end with the cursor to continue with, then the server
finishes the answers under way, and only then the tasks end on which those answers depend. A kill instead of this end
loses nothing: a command is acknowledged only once it is in the log.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

import asyncpg
import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from schemas.config import Config
from schemas.topics import THREAD_EVENTS
from services.chassis.artifacts.object_store import open_artifacts
from services.chassis.artifacts.store import ArtifactStore
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import Clock, SystemClock
from services.chassis.following.quarantine import REPORT_SECONDS
from services.chassis.kafka.consumer_groups import kafka_groups
from services.chassis.log.port import Log
from services.chassis.postgres.roles import OPERATOR, READER
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.process.lifecycle import Lifecycle, run_service
from services.chassis.process.pacing import Pace
from services.chassis.process.telemetry import configure_logging
from services.chassis.service import open_service
from services.chassis.threads.postgres_states import TenantStates
from services.ingest.api_keys import PostgresKeys
from services.ingest.app import create_app
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.commands import CommandLimits, Commands, EarlierCommands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads, ThreadRows
from services.ingest.commands.forks import Forks, PostgresForkRows
from services.ingest.commands.refusals import Refusals, Standings
from services.ingest.commands.tools import Tools
from services.ingest.commands.views import CommandViews
from services.ingest.database import Database, statements
from services.ingest.files.named_artifacts import NamedArtifacts
from services.ingest.files.recorded_changes import Diffs, ViewedFileHistories
from services.ingest.files.transfers import TransferLimits, Transfers
from services.ingest.http.auth import Authenticator, DevAuthenticator, KeyAuthenticator
from services.ingest.http.operation import RequestRules
from services.ingest.imports.jobs import FILES_MAX, Imports, Jobs
from services.ingest.imports.supervisor import ImportSupervisor
from services.ingest.limits import LIMITS, IngestLimits
from services.ingest.metrics import IngestMetrics
from services.ingest.operations.dead_letters import DeadLetters
from services.ingest.operations.no_progress import Quiet
from services.ingest.operations.quarantine_reports import QuarantineReports
from services.ingest.operations.stuck import Ops, OpsLimits
from services.ingest.operations.windows import HOURS_MAX, OpsWindows
from services.ingest.reads.at_least import AtLeastWaits
from services.ingest.reads.reads import USAGE_DAYS_MAX, Reads
from services.ingest.reads.state_at import StatesAt
from services.ingest.routes.artifacts import ArtifactRoutes
from services.ingest.routes.children import ChildRoutes
from services.ingest.routes.events import EventRoutes
from services.ingest.routes.file_history import FileHistoryRoutes
from services.ingest.routes.imports import ImportRoutes
from services.ingest.routes.inputs import InputRoutes
from services.ingest.routes.lineage import LineageRoutes
from services.ingest.routes.operations.stuck import StuckRoutes
from services.ingest.routes.operations.windows import WindowRoutes
from services.ingest.routes.parameters import PageSizes
from services.ingest.routes.plans import PlanRoutes
from services.ingest.routes.reads import ReadRoutes
from services.ingest.routes.state import StateRoutes
from services.ingest.routes.threads import ThreadRoutes
from services.ingest.routes.tool_calls import ToolCallRoutes
from services.ingest.routes.usage import UsageRoutes
from services.ingest.settings import IngestSettings, UnsafeSettingsError, require_safe
from services.ingest.streams.event_stream import StreamOptions
from services.ingest.streams.history import PostgresHistory
from services.ingest.streams.live import LiveLimits, Watches
from services.ingest.streams.metrics import LiveCollector
from services.ingest.streams.watched_thread import TailLimits

SERVICE = "ingest"
BACKLOG: Final = 2_048
"""Connections that may wait to be accepted. When another instance ends, all of its clients connect at once."""
KEEP_ALIVE_SECONDS: Final = 30
"""How long an idle connection stays open. Clients poll and submit more often than that."""

logger = structlog.get_logger()


class CommandQueries(EarlierCommands, Standings, Protocol):
    """Everything that commands read from the views: earlier commands, and why a command was refused."""


def main() -> int:
    """Run the service until it is told to stop, and return the exit status of the process.

    Settings that would let anybody act for every tenant end it with status 2, before it listens.
    """
    settings = IngestSettings()
    try:
        require_safe(settings)
    except UnsafeSettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    configure_logging(settings.log_format, SERVICE, settings.instance, settings.log_level)

    async def serve(lifecycle: Lifecycle) -> None:
        await _serve(settings, lifecycle)

    return run_service(serve, settings.drain_seconds)


async def _serve(settings: IngestSettings, lifecycle: Lifecycle) -> None:
    registry = CollectorRegistry()
    server: _Server | None = None

    def not_ready() -> str | None:
        # Checked first: a balancer has to stop sending requests while those under way are still answered.
        if lifecycle.stopping.is_set():
            return "stopping"
        return None if server is not None and server.started else "starting"

    # The views are read with roles that cannot write: one for the data of one tenant, one for operators.
    async with open_service(
        settings,
        lifecycle,
        SERVICE,
        registry,
        not_ready=not_ready,
        owners=("projector", "ingest"),
        takes=(READER, OPERATOR),
    ) as service:
        partitions = await service.log.partition_count(THREAD_EVENTS.name)
        metrics = IngestMetrics.build(registry)
        wired = wire(settings, service.log, service.pool, SystemClock(), metrics, partitions)
        LiveCollector(wired.watches.counts, registry)
        await wired.watches.open()
        lifecycle.spawn(wired.watches.run(), "live reader")
        lifecycle.spawn(wired.tools.follow(), "catalog")
        lifecycle.spawn(wired.ops.run(), "ops")
        # Every instance works on imports; a lease keeps two from working on the same one.
        jobs = Jobs(service.pool, settings.instance, settings.import_lease_seconds)
        importing = ImportSupervisor(jobs, wired.imports.wanted)
        lifecycle.spawn(importing.run(lifecycle.stopping), "imports")
        service.measure_lag(wired.watches.positions, metrics.lag_records, metrics.lag_seconds)
        # The port is opened last: whoever connects finds everything else running.
        listener = _listen(settings.ingest_host, settings.ingest_port)
        server = _Server(_uvicorn_config(wired.app, settings))
        serving = lifecycle.spawn(server.serve([listener]), "http server")
        port = listener.getsockname()[1]
        logger.info("http_listening", host=settings.ingest_host, port=port, auth=settings.ingest_auth)
        await lifecycle.stopping.wait()
        # Streams end first, with the cursor to come back with; the server then waits for the answers under way.
        wired.watches.stop()
        server.should_exit = True
        await serving
        await lifecycle.end_tasks()
        await wired.watches.close()


class Wired(NamedTuple):
    """The application, and those of its parts that `_serve` runs beside the requests."""

    app: ASGIApp
    watches: Watches
    tools: Tools
    ops: Ops
    imports: Imports


def wire(
    settings: IngestSettings,
    log: Log,
    pool: asyncpg.Pool,
    clock: Clock,
    metrics: IngestMetrics,
    partitions: int,
    limits: IngestLimits = LIMITS,
) -> Wired:
    """Make every part of the service, and give each group of routes what it uses."""
    sql = statements()
    tenants = TenantPool(pool, settings.ingest_queries_per_tenant_max)
    database = Database(tenants, settings.ingest_query_timeout_seconds)
    pace = Pace()
    reports = QuarantineReports(log, partitions, int(3_000 * REPORT_SECONDS))
    watches = Watches(
        log,
        TenantStates(tenants, settings.ingest_query_timeout_seconds),
        PostgresHistory(tenants, settings.ingest_query_timeout_seconds),
        live_limits(settings),
        pace=pace,
        on_quarantine=reports.hear,
    )
    # Ephemeral threads are not in the views, so whoever asks the views asks the fold about those.
    views = ViewsAndFold(CommandViews(database, sql), watches)
    known = known_threads(settings, limits, log, views, partitions)
    commands = commands_of(settings, limits, log, known, views, watches, clock, metrics)
    accepting = accept_limits(settings)
    store = open_artifacts(settings)
    named = NamedArtifacts(store)
    tools = Tools(CatalogReader(log))
    forks = Forks(PostgresForkRows(database, sql), known)
    imports = Imports(pool, database, sql)
    ops = Ops(
        database=database,
        sql=sql,
        reports=reports,
        groups=partial(kafka_groups, settings),
        partitions=partitions,
        clock=clock,
        limits=ops_limits(settings),
        metrics=metrics,
    )
    reads = Reads(database, sql, limits.threads_looked_at_max)
    at_least = AtLeastWaits(known, views, limits.at_least_wait_seconds)
    pages = PageSizes(limits.page_default, limits.page_max)
    # In the order of `app.GROUPS`, which is the order in which requests are matched.
    groups = (
        InputRoutes(commands, accepting, named),
        ThreadRoutes(commands, accepting, named, known, views, reads, at_least, pages),
        EventRoutes(known, watches, at_least, pages, StreamOptions(limits.heartbeat_seconds, limits.send_seconds_max)),
        ReadRoutes(known, reads, tools, at_least, pages),
        StateRoutes(known, StatesAt(database, sql, log, limits.state), at_least),
        ToolCallRoutes(commands, accepting, known, views, tools),
        LineageRoutes(commands, accepting, named, forks),
        PlanRoutes(commands, accepting, known, views),
        ChildRoutes(commands, accepting, named, forks, settings.child_depth),
        ImportRoutes(imports, pages, FILES_MAX),
        UsageRoutes(reads, known, at_least, pages, clock, USAGE_DAYS_MAX),
        ArtifactRoutes(store, Transfers(transfer_limits(settings, limits), metrics), settings.artifact_bytes_max),
        FileHistoryRoutes(commands, known, tools, ViewedFileHistories(database, sql), diffs_of(limits, store)),
        StuckRoutes(ops, DeadLetters(database, sql), pages),
        WindowRoutes(OpsWindows(database, sql), pages, clock, HOURS_MAX),
    )
    rules = request_rules(settings, _authenticator(settings, database, sql, clock))
    app = create_app(groups, rules, requests_max=settings.ingest_requests_max, metrics=metrics)
    return Wired(app, watches, tools, ops, imports)


def request_rules(settings: IngestSettings, authenticator: Authenticator) -> RequestRules:
    """Return what holds for every request: who may send it, and how large its body may be."""
    return RequestRules(authenticator, settings.ingest_body_bytes_max)


def live_limits(settings: IngestSettings) -> LiveLimits:
    """Return the limits of streams. Those that no deployment changes are constants of `streams`."""
    tail = TailLimits(settings.ingest_stream_lag_records_max)
    return LiveLimits(watches_max=settings.ingest_streams_max, tail=tail)


def transfer_limits(settings: IngestSettings, limits: IngestLimits) -> TransferLimits:
    return TransferLimits(
        settings.ingest_transfers_max, settings.ingest_transfers_per_tenant_max, limits.send_seconds_max
    )


def ops_limits(settings: IngestSettings) -> OpsLimits:
    quiet = Quiet(1000 * settings.ops_stuck_seconds, 1000 * settings.ops_step_seconds)
    return OpsLimits(quiet=quiet, refresh_seconds=settings.ops_refresh_seconds)


def diffs_of(limits: IngestLimits, artifacts: ArtifactStore) -> Diffs:
    """Return what makes diffs of files. Their size is bounded, since a request waits for them."""
    return Diffs(artifacts, limits.diff_file_bytes_max, limits.diff_bytes_max)


def known_threads(
    settings: IngestSettings, limits: IngestLimits, log: Log, rows: ThreadRows, partitions: int
) -> KnownThreads:
    return KnownThreads(
        log=log,
        rows=rows,
        partitions=partitions,
        queue_max=settings.ingest_queue_inputs_max,
        wait_seconds=limits.views_wait_seconds,
    )


def commands_of(
    settings: IngestSettings,
    limits: IngestLimits,
    log: Log,
    known: KnownThreads,
    views: CommandQueries,
    watches: Watches,
    clock: Clock,
    metrics: IngestMetrics,
) -> Commands:
    return Commands(
        appender=log.appender,
        known=known,
        earlier_commands=views,
        verdicts=watches,
        clock=clock,
        instance=settings.instance,
        limits=CommandLimits(
            record_bytes_max=limits.record_bytes_max,
            appends_per_tenant_max=settings.ingest_appends_per_tenant_max,
            queue_inputs_max=settings.ingest_queue_inputs_max,
            recent_max=limits.recent_commands_max,
            verdict_wait_seconds=settings.ingest_verdict_wait_seconds,
        ),
        metrics=metrics,
        refusals=Refusals(views, limits.views_wait_seconds),
    )


def accept_limits(settings: IngestSettings) -> AcceptLimits:
    """Return the limits of what a command may contain, and the configuration of threads that name none."""
    default = Config(model=settings.ingest_default_model, instructions=settings.ingest_default_instructions)
    return AcceptLimits(
        input_bytes_max=settings.ingest_input_bytes_max,
        result_bytes_max=settings.ingest_result_bytes_max,
        config_bytes_max=settings.ingest_config_bytes_max,
        default_config=default,
    )


def _authenticator(settings: IngestSettings, database: Database, sql: Mapping[str, str], clock: Clock) -> Authenticator:
    if settings.ingest_auth == "dev":
        # `main` has checked it, too; but whoever calls `wire` otherwise must not open the service to the network.
        require_safe(settings)
        return DevAuthenticator()
    return KeyAuthenticator(
        PostgresKeys(database, sql),
        clock,
        cache_seconds=settings.ingest_key_cache_seconds,
    )


class _Server(uvicorn.Server):
    """A server that leaves signals to the lifecycle, which has more to end than the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch no signal; uvicorn would stop the server while streams are still open."""
        yield


def _uvicorn_config(app: ASGIApp, settings: IngestSettings) -> uvicorn.Config:
    """Return the server's configuration: only HTTP, and nothing that the frame of the service does already."""
    return uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        # What the application needs is opened and closed by `_serve`, in its order.
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # A client could write these headers itself.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # The server gives up on slow clients before the lifecycle ends the drain, so that they do not count as a
        # failure of the service.
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds * 0.8)),
    )


def _listen(host: str, port: int) -> socket.socket:
    """Listen before the server starts, so that a port in use is an error of the start. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


if __name__ == "__main__":
    sys.exit(main())
