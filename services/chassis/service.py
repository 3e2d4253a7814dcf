"""What every service opens before its own work, and closes after it: log, database, metrics and probes.

The order matters both ways. The database is checked first, because its errors need a person, and name what to do. The
log comes before the pool, because a service without a log can do nothing, while one without a database can wait for it.
Probes come last: a service that answers them has opened everything. Closing goes backwards.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import structlog
from prometheus_client import CollectorRegistry, Gauge

from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.lag import LagMeter, Offsets
from services.chassis.log.metrics import LogCollector, LogCounts
from services.chassis.log_partitions import PartitionWatch
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.database_setup import check_database
from services.chassis.process.lifecycle import Lifecycle
from services.chassis.process.metrics import CommonMetrics
from services.chassis.process.probes import Check, Probes
from services.chassis.removed_settings import removed_in
from services.chassis.settings import Settings

logger = structlog.get_logger()


@dataclass(slots=True)
class Service:
    """A service whose log and database are open."""

    settings: Settings
    lifecycle: Lifecycle
    log: KafkaLog
    pool: asyncpg.Pool
    meter: LagMeter | None = None
    """Measures the lag of the service's reader; None before the service reads."""

    def measure_lag(
        self,
        positions: Callable[[], Offsets],
        records: Gauge,
        seconds: Gauge,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """Measure how far the service's reader is behind: these metrics show it, and /livez judges by it."""
        self.meter = LagMeter(
            self.log,
            positions,
            records=records,
            seconds=seconds,
            waits=waits,
        )
        self.lifecycle.spawn(self.meter.run(), "lag")

    def not_live(self) -> str | None:
        """Return why the process should be killed and started again, or None."""
        return None if self.meter is None else self.meter.not_live()


@asynccontextmanager
async def open_service(
    settings: Settings,
    lifecycle: Lifecycle,
    service: str,
    registry: CollectorRegistry,
    *,
    not_ready: Check,
    owners: Sequence[str] = ("projector",),
    takes: Sequence[str] = (),
) -> AsyncIterator[Service]:
    """Open what the service needs, until the end of the block.

    The database may be away: nothing is connected before it is needed. Anything else that is wrong with it is a
    SetupError. `owners` are those whose migrations must be applied, `takes` the roles that the service acts as besides
    its own.
    """
    for removed in removed_in(os.environ):
        logger.warning("setting_removed", detail=removed)
    away = await check_database(settings, owners, takes)
    if away is not None:
        logger.warning("database_away", reason=away)
    metrics, counts = CommonMetrics.register(registry, service), LogCounts()
    LogCollector(counts, registry)
    log = await KafkaLog.open(settings, service, counts)
    try:
        watch = PartitionWatch(settings, log, metrics.partitions_added)
        await watch.begin()
        pool = await open_pool(
            settings.postgres_dsn,
            application_name=f"threadlog-{service}",
            size_min=0,
            size_max=settings.postgres_pool_max,
            command_timeout_seconds=settings.postgres_command_timeout_seconds,
            role=settings.postgres_role,
            count_statement=metrics.count_statement,
        )
        opened = Service(settings, lifecycle, log, pool)
        probes = await Probes.start(
            settings.probes_host, settings.probes_port, registry, not_ready=not_ready, not_live=opened.not_live
        )
        try:
            lifecycle.spawn(metrics.watch_event_loop(), "event loop watch")
            lifecycle.spawn(watch.run(), "partition watch")
            yield opened
        finally:
            await probes.close()
            pool.terminate()
    finally:
        await log.close()
