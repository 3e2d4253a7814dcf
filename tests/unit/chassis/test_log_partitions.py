"""What the watch says of a topic whose partitions change; `tests/integration/test_partitions.py` has a real one."""

import asyncio
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log_partitions import LOOK_SECONDS, OtherPartitionsError, PartitionWatch, require_same
from services.chassis.settings import Settings
from tests.support.simulated.virtual_tests import in_virtual_time

NO_DATABASE = "postgresql://nobody@localhost:0/none"


class Topic:
    """As much of a KafkaLog as a watch asks."""

    def __init__(self) -> None:
        self.partitions: int | None = 12

    async def cluster_id(self) -> str:
        return "cluster"

    async def partition_count(self, topic: str) -> int:
        return 12

    def partition_count_now(self, topic: str) -> int | None:
        return self.partitions


def test_another_number_is_refused_with_what_to_do() -> None:
    require_same("events", None, 12)
    require_same("events", 12, 12)
    with pytest.raises(OtherPartitionsError, match=r"events has 24 .* had 12 .* make the topics anew with 12 "):
        require_same("events", 12, 24)


@in_virtual_time
async def test_a_topic_that_is_given_partitions_is_told_of_once() -> None:
    topic = Topic()
    gauge = Gauge("added", "Partitions.", registry=CollectorRegistry())
    settings = Settings(postgres_dsn=NO_DATABASE)
    watch = PartitionWatch(settings, cast("KafkaLog", topic), gauge)
    await watch.begin()
    with capture_logs() as said:
        running = asyncio.create_task(watch.run())
        for partitions in (12, None, 24, 24, None, 12, 25):
            topic.partitions = partitions
            await asyncio.sleep(LOOK_SECONDS)
        running.cancel()
    assert [line["event"] for line in said] == ["partitions_added", "partitions_added"]
    assert "thread-events has 24 partitions, and had 12" in said[0]["reason"]
    assert gauge.collect()[0].samples[0].value == 13
