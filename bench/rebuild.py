"""How fast the views are made from the log, beside how fast Postgres takes rows at all."""

import time
from dataclasses import dataclass

import asyncpg

from services.chassis.kafka import KafkaLog
from services.projector.rebuild import Progress, rebuild
from services.projector.settings import ProjectorSettings
from tests.support.system import System

COPY_BATCH_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    events_per_second: float
    copy_rows_per_second: float
    """Of the rows of the view `events`, into a table like it without indexes."""


async def measure_rebuild(system: System) -> Rebuilt:
    """Rebuilds what the sessions of this run have left in the log."""
    settings = ProjectorSettings(
        kafka_bootstrap_servers=system.settings.kafka_bootstrap_servers, postgres_dsn=system.settings.postgres_dsn
    )
    last: list[Progress] = []
    log = await KafkaLog.open(settings, "bench-rebuild")
    try:
        begun = time.perf_counter()
        await rebuild(log, settings.postgres_dsn, settings, lambda progress: last.__setitem__(slice(None), [progress]))
        seconds = time.perf_counter() - begun
    finally:
        await log.close()
    return Rebuilt(last[0].records_done / seconds, await _copy_rows_per_second(settings.postgres_dsn))


async def _copy_rows_per_second(dsn: str) -> float:
    connection = await asyncpg.connect(dsn)
    try:
        rows = [tuple(row) for row in await connection.fetch("select * from views.events limit 50000")]
        await connection.execute("create temporary table copied as select * from views.events limit 0")
        await connection.execute("set synchronous_commit = off")
        begun = time.perf_counter()
        for start in range(0, len(rows), COPY_BATCH_ROWS):
            batch = rows[start : start + COPY_BATCH_ROWS]
            await connection.copy_records_to_table("copied", records=batch)
        return len(rows) / (time.perf_counter() - begun)
    finally:
        await connection.close()
