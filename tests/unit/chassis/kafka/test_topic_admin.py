from collections.abc import Sequence

from schemas.topics import TOPICS
from services.chassis.kafka.topic_admin import FoundTopic, TopicDifference, TopicSpec, apply, check, topic_specs


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, FoundTopic] = {}

    async def find(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        return {name: topic for name, topic in self.topics.items() if name in names}

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        self.topics |= {spec.name: FoundTopic(spec.partitions, spec.configs) for spec in specs}


SPECS = topic_specs(TOPICS, partitions=12, replication_factor=1)


async def test_missing_topics_are_made_once() -> None:
    broker = Broker()
    assert [(each.what, each.found) for each in await check(broker, SPECS)] == [("topic", "missing")] * len(TOPICS)
    assert (await apply(broker, SPECS)).created == tuple(topic.name for topic in TOPICS)
    assert broker.topics["thread-events"].partitions == 12
    assert broker.topics["tool-catalog"].partitions == 1
    assert broker.topics["tool-catalog"].configs["cleanup.policy"] == "compact"
    assert broker.topics["thread-progress"].configs["retention.ms"] == "3600000"
    again = await apply(broker, SPECS)
    assert (again.created, again.differences) == ((), ())


async def test_differences_are_told_and_left() -> None:
    broker = Broker()
    broker.topics["thread-events"] = FoundTopic(6, {"retention.ms": "1000", "cleanup.policy": "delete"})
    differences = (await apply(broker, SPECS)).differences
    assert differences == (
        TopicDifference("thread-events", "partitions", "12", "6"),
        TopicDifference("thread-events", "retention.ms", "-1", "1000"),
    )
    assert str(differences[0]) == "thread-events: partitions should be 12, is 6"
    assert broker.topics["thread-events"].partitions == 6
