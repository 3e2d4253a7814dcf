"""What no service on this log can be faster than: one record produced with acks=all, until a reader has it."""

import statistics
import time

from schemas.topics import THREAD_PROGRESS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing, TopicPartition
from services.chassis.settings import Settings

TRIPS = 300


async def floor_ms(settings: Settings) -> float:
    """Median of the round trips, in milliseconds."""
    log = await KafkaLog.open(settings, "bench")
    try:
        tp = TopicPartition(THREAD_PROGRESS.name, 0)
        end = (await log.end_offsets([tp]))[tp]
        reader = await log.reader({tp: end})
        seconds = []
        for _ in range(TRIPS):
            begun = time.perf_counter()
            appended = log.appender.append(tp.topic, tp.partition, [Outgoing(b"bench/floor", b"x" * 800)])
            while not await reader.poll(1_000):
                pass
            seconds.append(time.perf_counter() - begun)
            await appended
        return 1000 * statistics.median(seconds)
    finally:
        await log.close()
