import sys
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS
from services.chassis.catalog_publisher import Publisher
from services.chassis.catalog_reader import CatalogReader
from services.chassis.clock import SystemClock, draw_id
from services.chassis.fold_loop import FoldLoop, fold_loop_settings
from services.chassis.groups import RUNTIME_GROUP
from services.chassis.lifecycle import Lifecycle, run_service
from services.chassis.pacing import Pace
from services.chassis.postgres_states import PostgresStates
from services.chassis.service import surroundings
from services.chassis.sql_files import SqlFiles
from services.chassis.telemetry import configure_logging
from services.chassis.timers import Timers
from services.runtime.child_store import PostgresChildren
from services.runtime.loop import Runtime
from services.runtime.metrics import RuntimeMetrics
from services.runtime.models import open_model
from services.runtime.own_tools import ENTRY
from services.runtime.scheduling import ModelSlots
from services.runtime.settings import RuntimeSettings
from services.runtime.transcripts import PostgresTranscripts
from services.runtime.work import RuntimeIdentity, RuntimeOptions, Work


async def serve(settings: RuntimeSettings, lifecycle: Lifecycle) -> None:
    registry = CollectorRegistry()
    following: FoldLoop[Work] | None = None

    def not_ready() -> str | None:
        if lifecycle.stopping.is_set():
            return "stopping"
        return "starting" if following is None else following.not_ready()

    async with surroundings(settings, lifecycle, "runtime", registry, not_ready=not_ready) as around:
        clock, metrics = SystemClock(), RuntimeMetrics.register(registry)
        timers = Timers(clock)
        catalog = CatalogReader(around.log)
        sql = SqlFiles(Path(__file__).with_name("sql"))
        runtime = Runtime(
            log_=around.log,
            clock=clock,
            timers=timers,
            catalog=catalog,
            model=open_model(settings),
            slots=ModelSlots(settings.runtime_model_calls_max, settings.runtime_model_calls_per_tenant_max),
            transcripts=PostgresTranscripts(around.pool, sql),
            children=PostgresChildren(around.pool, sql),
            partitions=await around.log.partition_count(THREAD_EVENTS.name),
            spawn=lifecycle.spawn,
            identity=RuntimeIdentity(settings.instance, draw_id()[:8], settings.runtime_agent_version),
            options=RuntimeOptions(
                limits=settings.limits(),
                answer_bytes_max=settings.runtime_answer_bytes_max,
                append_retry_ms=int(1000 * settings.runtime_append_retry_seconds),
                delta_interval_ms=settings.runtime_delta_interval_ms,
            ),
            metrics=metrics,
        )
        states = PostgresStates(around.pool)
        pace = Pace(settings.kafka_busy_threads, settings.kafka_busy_pause_ms / 1000)
        loop: FoldLoop[Work] = FoldLoop(
            around.log, states, runtime, THREAD_EVENTS.name, fold_loop_settings(settings), states, pace
        )
        lifecycle.spawn(timers.run(), "timers")
        lifecycle.spawn(catalog.run(), "catalog")
        await Publisher(around.log, clock, catalog).publish(ENTRY)
        reader = await around.log.group_reader(
            [THREAD_EVENTS.name], RUNTIME_GROUP, loop, f"runtime-{settings.instance}"
        )
        following = loop
        around.measure_lag(loop.positions, metrics.lag_records, metrics.lag_seconds, loop.waits_for_states)
        loop.begin(lifecycle.spawn)
        lifecycle.spawn(loop.run(reader, lifecycle.stopping), "fold loop")
        await lifecycle.stopping.wait()
        runtime.stop(loop.partitions.values())
        await around.log.appender.flush()
        await lifecycle.end_tasks()


def main() -> int:
    settings = RuntimeSettings()
    configure_logging(settings.log_format, "runtime", settings.instance, settings.log_level)
    return run_service(partial(serve, settings), settings.drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
