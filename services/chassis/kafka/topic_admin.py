"""The topics of `schemas.topics` on a broker: missing ones are created, existing ones are compared.

Nothing that exists is changed. Partition counts are chosen once, because another count would send keys to other
partitions. Whoever gave a topic another retention may have meant it. So differences are values, for the caller to show.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.topics import Topic, partition_count


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the broker reports it."""

    partitions: int
    configs: Mapping[str, str]
    """Configurations that the broker reports. The embedded broker reports none, which does not count as a
    difference.
    """


@dataclass(frozen=True, slots=True)
class TopicDifference:
    topic: str
    what: str
    """`topic`, `partitions`, or the name of a broker's topic configuration such as `retention.ms`."""
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.what} should be {self.wanted}, is {self.found}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did, and what it left for a person."""

    created: tuple[str, ...]
    differences: tuple[TopicDifference, ...]


class Topics(Protocol):
    """What a broker can be asked about topics."""

    async def find(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        """Return the topics of these names that exist."""
        ...

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; return when clients can use them. A topic that somebody else creates meanwhile is no error."""
        ...


def topic_specs(topics: Iterable[Topic], partitions: int, replication_factor: int) -> tuple[TopicSpec, ...]:
    """Return how these topics should be on a broker. `partitions` is for topics of events; others have a fixed
    count.
    """
    return tuple(
        TopicSpec(
            name=topic.name,
            partitions=partition_count(topic, partitions),
            replication_factor=replication_factor,
            configs={
                "cleanup.policy": topic.cleanup_policy,
                "retention.ms": str(topic.retention_ms),
                "max.message.bytes": str(topic.record_bytes_max),
            },
        )
        for topic in topics
    )


async def check(broker: Topics, specs: Sequence[TopicSpec]) -> tuple[TopicDifference, ...]:
    """Return how the broker's topics differ from `specs`. Nothing is changed."""
    found = await broker.find([spec.name for spec in specs])
    return tuple(difference for spec in specs for difference in _differences(spec, found.get(spec.name)))


async def apply(broker: Topics, specs: Sequence[TopicSpec]) -> Applied:
    """Create the topics whose names are missing, and compare the others. Idempotent by the names."""
    found = await broker.find([spec.name for spec in specs])
    missing = [spec for spec in specs if spec.name not in found]
    if missing:
        await broker.create(missing)
    return Applied(created=tuple(spec.name for spec in missing), differences=await check(broker, specs))


def _differences(spec: TopicSpec, found: FoundTopic | None) -> Iterable[TopicDifference]:
    if found is None:
        yield TopicDifference(spec.name, "topic", "there", "missing")
        return
    if found.partitions != spec.partitions:
        yield TopicDifference(spec.name, "partitions", str(spec.partitions), str(found.partitions))
    for config, wanted in spec.configs.items():
        actual = found.configs.get(config, wanted)
        if actual != wanted:
            yield TopicDifference(spec.name, config, wanted, actual)
