"""How fast the views are made from the log, beside how fast Postgres takes the same rows by COPY and nothing else."""

import time
from dataclasses import dataclass
from itertools import islice

import asyncpg

from bench.history import append_threads
from bench.system import Bench
from services.chassis.kafka.kafka_log import KafkaLog
from services.projector.generations.database import connect
from services.projector.generations.generations import TABLES, live_generation
from services.projector.rebuilding.progress import Progress
from services.projector.rebuilding.rebuild import rebuild
from services.projector.settings import ProjectorSettings

THREADS = 4_000
"""Threads of twenty records each, beside what the sessions of this run have left in the log."""
WORKERS = (1, 2)
COPY_BATCH_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """All rates are in events per second."""

    by_workers: dict[int, float]
    copied: float
    """All rows of all views, into tables like theirs without indexes."""
    copied_with_indexes: float


async def measure_rebuild(bench: Bench) -> Rebuilt:
    settings = ProjectorSettings(
        kafka_bootstrap_servers=bench.system.settings.kafka_bootstrap_servers,
        postgres_dsn=bench.system.settings.postgres_dsn,
    )
    log = await KafkaLog.open(settings, "bench-rebuild")
    try:
        await append_threads(log, THREADS)
        await bench.all_shown()
        by_workers = {
            workers: await _rebuild(log, settings.model_copy(update={"projector_rebuild_workers": workers}))
            for workers in WORKERS
        }
    finally:
        await log.close()
    return Rebuilt(by_workers, *await _copy(settings))


async def _rebuild(log: KafkaLog, settings: ProjectorSettings) -> float:
    last: list[Progress] = []
    begun = time.perf_counter()
    await rebuild(log, settings.postgres_dsn, settings, lambda progress: last.__setitem__(slice(None), [progress]))
    return last[0].records_done / (time.perf_counter() - begun)


async def _copy(settings: ProjectorSettings) -> tuple[float, float]:
    connection = await connect(settings.postgres_dsn, settings)
    try:
        live = await live_generation(connection)
        assert live is not None
        await connection.execute("set synchronous_commit = off")
        tables = {table: await _rows(connection, f"{live.schema}.{table}") for table in TABLES}
        seconds = []
        for indexes in ("excluding", "including"):
            await connection.execute("create schema bench_copies")
            for table in TABLES:
                await connection.execute(
                    f"create table bench_copies.{table} (like {live.schema}.{table} {indexes} indexes)"
                )
            begun = time.perf_counter()
            for table, rows in tables.items():
                await _copy_rows(connection, table, rows)
            seconds.append(time.perf_counter() - begun)
            await connection.execute("drop schema bench_copies cascade")
        return len(tables["events"]) / seconds[0], len(tables["events"]) / seconds[1]
    finally:
        await connection.close()


async def _rows(connection: asyncpg.Connection, table: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await connection.fetch(f"select * from {table}")]  # noqa: S608  # a constant


async def _copy_rows(connection: asyncpg.Connection, table: str, rows: list[tuple[object, ...]]) -> None:
    left = iter(rows)
    while batch := list(islice(left, COPY_BATCH_ROWS)):
        await connection.copy_records_to_table(table, schema_name="bench_copies", records=batch)
