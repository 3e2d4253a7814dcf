"""Wires the tool-executor and runs it until it is told to stop.

One process follows every topic of threads (durable and ephemeral) with an `Executor` each. They share the tools, the
MCP servers, the watch over leases and the timers, but not their concurrency limits.

The order at the end matters. The executors drain while the loops still read, because a claim has to be read back and a
cancel has to arrive. Then reading stops, the appends that are queued go out, and only then the warden closes, which
kills whatever process is left.
"""

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from services.chassis.artifacts.object_store import open_artifacts
from services.chassis.catalog.publisher import Publisher
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import SystemClock, draw_id
from services.chassis.following.following import FOLLOWED, Following, fold_loop
from services.chassis.log.consumer_groups import executor_group
from services.chassis.process.lifecycle import Lifecycle, run_service
from services.chassis.process.telemetry import configure_logging
from services.chassis.process.timers import Timers
from services.chassis.service import open_service
from services.tool_executor.assembly import assembled
from services.tool_executor.claiming.reconcile import ReconcileLimits
from services.tool_executor.executing.leases import Leases
from services.tool_executor.executing.loop import Executor
from services.tool_executor.executing.options import ExecutorOptions
from services.tool_executor.executing.output_store import OutputStore
from services.tool_executor.executing.work import Work
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.offering.tools_file import ToolsFile, ToolsFileError, read_tools_file
from services.tool_executor.settings import ExecutorSettings

KILL_MARGIN_SECONDS: Final = 1.0
"""Time beyond the grace of tools at the end of a drain, in which the ends of killed calls are recorded."""


async def serve(settings: ExecutorSettings, file: ToolsFile, lifecycle: Lifecycle) -> None:
    """Run until the lifecycle stops. A failure of any spawned task ends the process."""
    registry = CollectorRegistry()
    following = Following[Work](lifecycle)

    async with open_service(settings, lifecycle, "tool-executor", registry, not_ready=following.not_ready) as service:
        clock, metrics = SystemClock(), ExecutorMetrics.register(registry)
        timers = Timers(clock)
        catalog = CatalogReader(service.log)
        leases = Leases(service.log, clock, timers)
        store = open_artifacts(settings)
        publisher = Publisher(service.log, clock, catalog)
        assembly = assembled(settings, file, os.environ, publisher, lifecycle.spawn, store)
        options = ExecutorOptions(
            instance=settings.instance,
            incarnation=draw_id()[:8],
            pool=file.pool,
            lease_seconds=settings.executor_lease_seconds,
            calls_max=settings.executor_calls_max,
            calls_per_tenant_max=settings.executor_calls_per_tenant_max,
            calls_per_tool_max=settings.executor_calls_per_tool_max,
            reconcile=ReconcileLimits(
                grace_seconds=settings.executor_reconcile_grace_seconds,
                lease_seconds=settings.executor_lease_seconds,
            ),
            reconcile_answer_seconds=settings.executor_reconcile_answer_seconds,
        )
        tools = OutputStore(assembly.toolbox, store, metrics)
        executors = {
            topic: Executor(
                log_=service.log,
                clock=clock,
                timers=timers,
                leases=leases,
                tools=tools,
                spawn=lifecycle.spawn,
                options=replace(options, topic=topic.name),
                metrics=metrics,
                hooks=assembly.hooks(),
            )
            for topic in FOLLOWED
        }
        lifecycle.spawn(timers.run(), "timers")
        lifecycle.spawn(catalog.run(), "catalog")
        lifecycle.spawn(leases.run(), "leases")
        assembly.start()
        metrics.quarantined.set_function(following.quarantined)
        member = f"tool-executor-{file.pool}-{settings.instance}"
        loops = {topic: fold_loop(service.log, service.pool, topic, executor) for topic, executor in executors.items()}
        lag = (metrics.lag_records, metrics.lag_seconds)
        reading = await following.begin(service, loops, executor_group(file.pool), member, asyncio.Event(), lag)
        await lifecycle.stopping.wait()
        kill_seconds = settings.executor_grace_seconds + KILL_MARGIN_SECONDS
        drain_seconds = max(0.0, settings.drain_seconds - kill_seconds)
        await asyncio.gather(*[executor.drain(drain_seconds, kill_seconds) for executor in executors.values()])
        reading.cancel()
        await service.log.appender.flush()
        await assembly.warden.close()
        await lifecycle.end_tasks()


def main() -> int:
    """Return the exit status: 0 after a clean stop, 1 after a failure, 2 if the tools file is wrong."""
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
