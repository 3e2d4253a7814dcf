"""What every service does around its own work: settings to logs, metrics, probes, log and database, and back down."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import structlog
from prometheus_client import CollectorRegistry

from services.chassis.database_setup import check_database
from services.chassis.kafka import KafkaLog
from services.chassis.log_metrics import LogCollector, LogCounts
from services.chassis.metrics import CommonMetrics
from services.chassis.postgres import open_pool
from services.chassis.probes import Check, Probes
from services.chassis.settings import Settings

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    log: KafkaLog
    pool: asyncpg.Pool
    registry: CollectorRegistry
    metrics: CommonMetrics


@asynccontextmanager
async def surroundings(
    settings: Settings,
    service: str,
    registry: CollectorRegistry,
    *,
    not_ready: Check,
    not_live: Check,
    owners: Sequence[str] = ("projector",),
    takes: Sequence[str] = (),
) -> AsyncIterator[Surroundings]:
    """Open to the end of the block. The database may be away: nothing is connected before it is needed. What else is
    wrong with it is a SetupError; `takes` are the roles that are taken on beside the service's own.
    """
    away = await check_database(settings, owners, takes)
    if away is not None:
        logger.warning("database_away", reason=away)
    metrics, counts = CommonMetrics.register(registry, service), LogCounts()
    LogCollector(counts, registry)
    log = await KafkaLog.open(settings, service, counts)
    try:
        pool = await open_pool(
            settings.postgres_dsn,
            application_name=f"threadlog-{service}",
            size_min=0,
            size_max=settings.postgres_pool_max,
            command_timeout_seconds=settings.postgres_command_timeout_seconds,
            connect_timeout_seconds=settings.postgres_connect_timeout_seconds,
            role=settings.postgres_role,
            count_statement=metrics.count_statement,
        )
        probes = await Probes.start(
            settings.probes_host, settings.probes_port, registry, not_ready=not_ready, not_live=not_live
        )
        try:
            yield Surroundings(log, pool, registry, metrics)
        finally:
            await probes.close()
            pool.terminate()
    finally:
        await log.close()
