"""The runtime's process: it wires the parts and runs them until it is told to stop.

Each followed topic has a `Runtime` of its own; both share the model, its slots and the catalog. On a stop the runtimes
hand over what runs before the log is flushed, so the next owners find their events.
"""

import sys
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS
from services.chassis.catalog.publisher import Publisher
from services.chassis.catalog.reader import CatalogReader
from services.chassis.clock import SystemClock, draw_id
from services.chassis.following.following import FOLLOWED, Following, fold_loop
from services.chassis.log.consumer_groups import RUNTIME_GROUP
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.process.lifecycle import Lifecycle, run_service
from services.chassis.process.telemetry import configure_logging
from services.chassis.process.timers import Timers
from services.chassis.service import open_service
from services.runtime.child_store import PostgresChildren
from services.runtime.deciding.own_tools import ENTRY
from services.runtime.loop import Runtime
from services.runtime.metrics import RuntimeMetrics
from services.runtime.model_choice import open_model
from services.runtime.models.scheduling import ModelSlots
from services.runtime.settings import RuntimeSettings
from services.runtime.thread_work import RuntimeIdentity, RuntimeOptions, Work
from services.runtime.transcript_store import PostgresTranscripts


async def serve(settings: RuntimeSettings, lifecycle: Lifecycle) -> None:
    registry = CollectorRegistry()
    following = Following[Work](lifecycle)

    async with open_service(settings, lifecycle, "runtime", registry, not_ready=following.not_ready) as service:
        clock, metrics = SystemClock(), RuntimeMetrics.register(registry)
        timers = Timers(clock)
        catalog = CatalogReader(service.log)
        sql = SqlFiles(Path(__file__).with_name("sql"))
        make = partial(
            Runtime,
            log_=service.log,
            clock=clock,
            timers=timers,
            catalog=catalog,
            model=open_model(settings),
            slots=ModelSlots(settings.runtime_model_calls_max, settings.runtime_model_calls_per_tenant_max),
            transcripts=PostgresTranscripts(service.pool, sql),
            children=PostgresChildren(service.pool, sql),
            partitions=await service.log.partition_count(THREAD_EVENTS.name),
            spawn=lifecycle.spawn,
            identity=RuntimeIdentity(settings.instance, draw_id()[:8], settings.runtime_agent_version),
            options=RuntimeOptions(settings.limits()),
            metrics=metrics,
        )
        runtimes = {topic: make() for topic in FOLLOWED}
        lifecycle.spawn(timers.run(), "timers")
        lifecycle.spawn(catalog.run(), "catalog")
        # A model is offered what the catalog has, so the runtime's own tools have to be in it before threads are read.
        await Publisher(service.log, clock, catalog).publish(ENTRY)
        loops = {topic: fold_loop(service.log, service.pool, topic, runtime) for topic, runtime in runtimes.items()}
        lag = (metrics.lag_records, metrics.lag_seconds)
        await following.begin(service, loops, RUNTIME_GROUP, f"runtime-{settings.instance}", lifecycle.stopping, lag)
        await lifecycle.stopping.wait()
        for topic, runtime in runtimes.items():
            runtime.stop(following.partitions(topic))
        await service.log.appender.flush()
        await lifecycle.end_tasks()


def main() -> int:
    settings = RuntimeSettings()
    configure_logging(settings.log_format, "runtime", settings.instance, settings.log_level)
    return run_service(partial(serve, settings), settings.drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
