"""A log of turns as they mostly go, written as fast as the broker takes it: a few threads are made, and each of them is
written under many keys.
"""

import asyncio
from collections import defaultdict
from typing import Final

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing
from tests.support.recorded.histories import History, plain_turn

RECORDS_PER_THREAD: Final = 20
CALLS: Final = 3
RESULT_BYTES: Final = (20, 200, 800, 800, 3_000)
OPEN_THREADS: Final = 300
"""Threads whose records are mixed with each other at any time."""


async def append_threads(log: KafkaLog, threads: int, tenant: str = "bench") -> int:
    """Threads of one turn each; how many records that are."""
    made = [plain_turn(History(), CALLS, "x" * size).encoded for size in RESULT_BYTES]
    assert all(len(encoded) == RECORDS_PER_THREAD for encoded in made)
    partitions = await log.partition_count(THREAD_EVENTS.name)
    waiting: list[asyncio.Future[tuple[int, ...]]] = []
    for start in range(0, threads, OPEN_THREADS):
        numbers = range(start, min(start + OPEN_THREADS, threads))
        keys = [ThreadKey(TenantId(tenant), ThreadId(f"turn-{number}")).to_bytes() for number in numbers]
        for place in range(RECORDS_PER_THREAD):
            by_partition: dict[int, list[Outgoing]] = defaultdict(list)
            for number, key in enumerate(keys):
                each = made[number % len(made)][place]
                outgoing = Outgoing(key, each.value, each.headers, each.record.time_ms)
                by_partition[log.partition_for(key, partitions)].append(outgoing)
            await asyncio.gather(*waiting)
            waiting = [
                log.appender.append(THREAD_EVENTS.name, partition, records)
                for partition, records in by_partition.items()
            ]
    await asyncio.gather(*waiting)
    return threads * RECORDS_PER_THREAD
