"""How far a reader is behind, and that it stands still, by what Kafka says of the end of its log."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Gauge

from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import TopicSpec
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.lag import LagMeter
from services.chassis.log.port import Outgoing, TopicPartition
from services.chassis.settings import Settings
from tests.support.worlds.projector import until

pytestmark = pytest.mark.kafka
TP = TopicPartition("lag-events", 0)


async def test_a_reader_that_stands_still_before_records_is_found_and_one_that_reads_is_not(
    kafka_bootstrap: str,
) -> None:
    settings = Settings(kafka_bootstrap_servers=kafka_bootstrap)
    async with kafka_topics(settings) as topics:
        await topics.create([TopicSpec(TP.topic, 1, 1, {})])
    log = await KafkaLog.open(settings, "test")
    reader = await log.reader({TP: 0})
    registry = CollectorRegistry()
    records, seconds = Gauge("records", "x", registry=registry), Gauge("seconds", "x", registry=registry)
    meter = LagMeter(
        log,
        lambda: {TP: reader.position(TP)},
        records=records,
        seconds=seconds,
        look_seconds=0.1,
        stuck_seconds=1.0,
    )
    running = asyncio.create_task(meter.run())

    async def behind() -> tuple[float | None, float | None]:
        return registry.get_sample_value("records"), registry.get_sample_value("seconds")

    try:
        await log.appender.append(TP.topic, 0, [Outgoing(b"k", b"v") for _ in range(5)])
        await until(behind, lambda now: now[0] == 5)
        assert meter.not_live() is None

        async def why() -> str | None:
            return meter.not_live()

        await until(why, lambda reason: reason is not None)
        assert (await behind())[1] >= 1  # type: ignore[operator]  # it is shown by now
        while reader.position(TP) < 5:
            await reader.poll(500)
        await until(behind, lambda now: now == (0, 0))
        assert meter.not_live() is None
    finally:
        running.cancel()
        await reader.close()
        await log.close()
