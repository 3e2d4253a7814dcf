import asyncio
import os
import sys
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS
from services.chassis.catalog_reader import CatalogReader
from services.chassis.clock import SystemClock, draw_id
from services.chassis.fold_loop import FoldLoop, fold_loop_settings
from services.chassis.groups import executor_group
from services.chassis.lifecycle import Lifecycle, run_service
from services.chassis.pacing import Pace
from services.chassis.postgres_states import PostgresStates
from services.chassis.service import surroundings
from services.chassis.telemetry import configure_logging
from services.chassis.timers import Timers
from services.tool_executor.assembly import assembled
from services.tool_executor.leases import Leases
from services.tool_executor.loop import Executor, ExecutorOptions
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.publisher import Publisher
from services.tool_executor.reconcile import ReconcileLimits
from services.tool_executor.settings import ExecutorSettings
from services.tool_executor.tools_file import ToolsFile, ToolsFileError, read_tools_file
from services.tool_executor.work import Work


async def serve(settings: ExecutorSettings, file: ToolsFile, lifecycle: Lifecycle) -> None:
    registry = CollectorRegistry()
    following: FoldLoop[Work] | None = None

    def not_ready() -> str | None:
        if lifecycle.stopping.is_set():
            return "stopping"
        return "starting" if following is None else following.not_ready()

    async with surroundings(settings, lifecycle, "tool-executor", registry, not_ready=not_ready) as around:
        clock, metrics = SystemClock(), ExecutorMetrics.register(registry)
        timers = Timers(clock)
        catalog = CatalogReader(around.log)
        leases = Leases(around.log, clock, timers)
        publisher = Publisher(around.log, clock, catalog)
        assembly = assembled(settings, file, os.environ, publisher, lifecycle.spawn)
        executor = Executor(
            log_=around.log,
            clock=clock,
            timers=timers,
            leases=leases,
            tools=assembly.toolbox,
            spawn=lifecycle.spawn,
            options=ExecutorOptions(
                instance=settings.instance,
                incarnation=draw_id()[:8],
                pool=file.pool,
                lease_seconds=settings.executor_lease_seconds,
                calls_max=settings.executor_calls_max,
                calls_per_tenant_max=settings.executor_calls_per_tenant_max,
                calls_per_tool_max=settings.executor_calls_per_tool_max,
                append_retry_ms=int(1000 * settings.executor_append_retry_seconds),
                output_interval_ms=settings.executor_output_interval_ms,
                reconcile=ReconcileLimits(
                    first_seconds=settings.executor_reconcile_first_seconds,
                    most_seconds=settings.executor_reconcile_most_seconds,
                    tries=settings.executor_reconcile_tries,
                    grace_seconds=settings.executor_reconcile_grace_seconds,
                    lease_seconds=settings.executor_lease_seconds,
                ),
                reconcile_answer_seconds=settings.executor_reconcile_answer_seconds,
                reconciles_max=settings.executor_reconciles_max,
            ),
            metrics=metrics,
            hooks=assembly.hooks(),
        )
        states = PostgresStates(around.pool)
        pace = Pace(settings.kafka_busy_threads, settings.kafka_busy_pause_ms / 1000)
        loop: FoldLoop[Work] = FoldLoop(
            around.log, states, executor, THREAD_EVENTS.name, fold_loop_settings(settings), states, pace
        )
        lifecycle.spawn(timers.run(), "timers")
        lifecycle.spawn(catalog.run(), "catalog")
        lifecycle.spawn(leases.run(), "leases")
        assembly.start()
        reader = await around.log.group_reader(
            [THREAD_EVENTS.name], executor_group(file.pool), loop, f"tool-executor-{file.pool}-{settings.instance}"
        )
        following = loop
        metrics.quarantined.set_function(lambda: sum([len(at.quarantine) for at in loop.partitions.values()]))
        around.measure_lag(loop.positions, metrics.lag_records, metrics.lag_seconds, loop.waits_for_states)
        loop.begin(lifecycle.spawn)
        reading = lifecycle.spawn(loop.run(reader, asyncio.Event()), "fold loop")
        await lifecycle.stopping.wait()
        drain_seconds = max(0.0, settings.drain_seconds - settings.executor_kill_seconds)
        await executor.drain(drain_seconds, settings.executor_kill_seconds)
        reading.cancel()
        await around.log.appender.flush()
        await assembly.warden.close()
        await lifecycle.end_tasks()


def main() -> int:
    settings = ExecutorSettings()
    configure_logging(settings.log_format, "tool-executor", settings.instance, settings.log_level)
    try:
        path = settings.executor_tools_file
        file = ToolsFile() if path is None else read_tools_file(path, os.environ)
    except ToolsFileError as error:
        structlog.get_logger().error("tools_file_refused", error=str(error))
        return 2
    return run_service(partial(serve, settings, file), settings.drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
