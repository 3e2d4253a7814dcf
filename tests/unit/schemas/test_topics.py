import pytest

from schemas.ids import is_name
from schemas.topics import RECORD_BYTES_MAX, THREAD_EVENTS, TOOL_CATALOG, TOPICS, Topic, partition_count


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_topic_is_written_and_read(topic: Topic):
    assert topic.producers
    assert topic.consumers
    assert is_name(topic.name)
    assert "_" not in topic.name and "." not in topic.name
    assert topic.record_bytes_max >= RECORD_BYTES_MAX


def test_names_are_unique():
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


def test_partitions_go_with_the_events():
    assert partition_count(THREAD_EVENTS, 12) == 12
    assert partition_count(TOOL_CATALOG, 12) == 1
