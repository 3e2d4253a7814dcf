"""`threadlog services run rollups`: the worker that counts the live windows of operators. Only this module knows Faust.

Faust reads `thread-effects` as a member of its group, and passes on what it reads. The windows' own positions say where
to read a partition from. They are stored with the cells in one transaction, so a crash counts nothing twice and leaves
nothing out. The offsets that Faust commits are for lag tools only. No Faust tables are used: their changelogs would be
a second place to recover from, and could not be written in one transaction with the cells that operators read.
"""

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

import faust
import structlog
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from prometheus_client import CollectorRegistry
from yarl import URL

from services.chassis.kafka.readers import COMMIT_INTERVAL_SECONDS
from services.chassis.log.consumer_groups import ROLLUPS_GROUP
from services.chassis.process.lifecycle import Lifecycle, run_service
from services.chassis.process.telemetry import configure_logging
from services.chassis.service import open_service
from services.projector.generations.errors import ProjectorError
from services.projector.metrics import RollupsMetrics
from services.projector.settings import RollupsSettings
from services.projector.windows.postgres import PostgresWindowStore
from services.projector.windows.worker import TOPIC, WindowWorker

STOP_SECONDS: Final = 5.0
"""How long Faust may take to stop."""

logger = structlog.get_logger()


class FaustEndedError(ProjectorError):
    """Faust has ended by itself, so nothing is read any more, and the process ends."""


class _Consumer(driver.Consumer):
    """Faust's consumer, which reads each partition from where the windows say."""

    worker: ClassVar[WindowWorker]

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Go to the windows' positions. Faust calls this after each assignment, before it reads."""
        assigned = {tp.partition: tp for tp in self.assignment() if tp.topic == TOPIC}
        starts = {assigned[number]: offset for number, offset in (await self.worker.hold(assigned)).items()}
        await self.seek_wait(starts)
        return starts


class _App(faust.App):
    def _create_directories(self) -> None:
        """Make no folders: they are for tables, and would appear in the current folder of the process."""


def make_app(settings: RollupsSettings, worker: WindowWorker) -> faust.App:
    servers = settings.kafka_bootstrap_servers.split(",")
    app = _App(
        ROLLUPS_GROUP,
        # Without this, variables of other programs would win over these arguments: BROKER_URL, APP_VERSION, TIMEZONE …
        env={},
        broker=[URL(f"kafka://{server.strip()}") for server in servers],
        broker_client_id=f"rollups-{settings.instance}",
        broker_session_timeout=settings.kafka_session_timeout_ms / 1000,
        broker_heartbeat_interval=settings.kafka_heartbeat_interval_ms / 1000,
        broker_request_timeout=settings.kafka_request_timeout_ms / 1000,
        broker_rebalance_timeout=settings.rollups_rebalance_timeout_seconds,
        broker_commit_interval=COMMIT_INTERVAL_SECONDS,
        consumer_auto_offset_reset="earliest",
        stream_buffer_maxsize=settings.window_limits.batch_max,
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
    )
    transport_type = type(
        "Transport", (driver.Transport,), {"Consumer": type("Consumer", (_Consumer,), {"worker": worker})}
    )
    app.transport = transport_type(app.conf.broker_consumer, app)
    topic = app.topic(TOPIC, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    @app.agent(topic, name="windows")
    async def count(effects: Any) -> None:
        async for event in effects.events():
            message = event.message
            await worker.feed(message.partition, message.offset, message.value, round(1000 * message.timestamp))

    return app


async def serve(settings: RollupsSettings, lifecycle: Lifecycle) -> None:
    registry = CollectorRegistry()
    metrics = RollupsMetrics.register(registry)
    worker: WindowWorker | None = None

    def not_ready() -> str | None:
        return None if worker is not None and worker.is_ready else "no partitions yet"

    async with open_service(settings, lifecycle, "rollups", registry, not_ready=not_ready) as service:
        store = PostgresWindowStore(settings.postgres_dsn, settings)
        worker = WindowWorker(store, service.log, await service.log.cluster_id(), settings, metrics)
        service.measure_lag(worker.positions, metrics.lag_records, metrics.lag_seconds)
        app = make_app(settings, worker)
        counting = lifecycle.spawn(worker.run(), "count")
        reading = lifecycle.spawn(_read(app), "faust")
        try:
            await lifecycle.stopping.wait()
        finally:
            reading.cancel()
            await asyncio.wait([reading], timeout=2 * STOP_SECONDS)
            if not counting.done():
                await worker.count()
            await store.close()


async def _read(app: faust.App) -> None:
    """Run Faust until it is cancelled. Raises FaustEndedError if Faust ends by itself."""
    app.finalize()
    try:
        await app.start()
        await app.wait_until_stopped()
        raise FaustEndedError(f"Faust reads {TOPIC} no more: {app.crash_reason!r}")
    finally:
        async with asyncio.timeout(STOP_SECONDS):
            await app.stop()


def main() -> int:
    settings = RollupsSettings()
    configure_logging(settings.log_format, "rollups", settings.instance, settings.log_level)
    return run_service(partial(serve, settings), settings.drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
