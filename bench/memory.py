"""What the services hold with 50,000 idle and 500 active threads: resident memory after a restart on that log."""

import asyncio

import asyncpg
import psutil

from bench.system import Bench
from schemas.codec import encode
from schemas.config import Config
from schemas.events import Event, InputSubmitted, TextItem, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.topics import THREAD_EVENTS
from services.chassis.clock import SystemClock
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing
from services.cli.local.supervisor import SERVICES

IDLE_THREADS = 50_000
ACTIVE_THREADS = 500
APPENDS_AT_ONCE = 2_000
SETTLE_SECONDS = 15.0
PROJECTED_SECONDS_MAX = 300.0
MIB = 1_048_576


async def measure_memory(bench: Bench) -> dict[str, float]:
    """Return the resident memory of each service in MiB."""
    log = await KafkaLog.open(bench.system.settings, "bench-memory")
    try:
        await _append_threads(log)
        await _wait_projected(bench)
    finally:
        await log.close()
    supervisor = bench.system.supervisor
    for service in SERVICES:
        await supervisor.stop(service)
    await supervisor.start_all()
    await asyncio.sleep(SETTLE_SECONDS)
    found = {service: psutil.Process(supervisor.pid(service) or 0).memory_info().rss for service in SERVICES}
    return {service: round(size / MIB, 1) for service, size in found.items()}


async def _append_threads(log: KafkaLog) -> None:
    clock = SystemClock()
    partitions = await log.partition_count(THREAD_EVENTS.name)
    waiting = []
    for number in range(IDLE_THREADS + ACTIVE_THREADS):
        key = ThreadKey(TenantId("bench"), ThreadId(f"memory-{number}"))
        active = number >= IDLE_THREADS
        events: list[Event] = [ThreadCreated(config=Config(model="scripted", approval="always"))]
        if active:
            events.append(InputSubmitted(input=f"input-{number}", items=(TextItem(text="Say it."),)))
        raw_key = key.to_bytes()
        outgoing = []
        for event in events:
            event_id = derive(str(key), event.kind)
            encoded = encode(key, event, source="bench", actor="user:bench", time_ms=clock.now_ms(), event_id=event_id)
            outgoing.append(Outgoing(raw_key, encoded.value, encoded.headers, encoded.record.time_ms))
        waiting.append(log.appender.append(THREAD_EVENTS.name, log.partition_for(raw_key, partitions), outgoing))
        if len(waiting) >= APPENDS_AT_ONCE:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


async def _wait_projected(bench: Bench) -> None:
    """Wait until the views hold every thread, and the active ones wait for an approval."""
    connection = await asyncpg.connect(bench.system.settings.postgres_dsn)
    try:
        async with asyncio.timeout(PROJECTED_SECONDS_MAX):
            while True:
                counted = await connection.fetchrow(
                    "select count(*), count(*) filter (where waiting_calls > 0) from views.threads "
                    "where tenant = 'bench'"
                )
                assert counted is not None, "an aggregate always has a row"
                threads, waiting = counted
                if threads >= IDLE_THREADS + ACTIVE_THREADS and waiting >= ACTIVE_THREADS:
                    return
                await asyncio.sleep(0.5)
    finally:
        await connection.close()
