"""The topics of `schemas.topics` on a broker: made where missing, compared where they exist.

Nothing that exists is changed. Partition counts are chosen once, because another count would send keys elsewhere; and
whoever gave a topic another retention may have meant it. Differences are values for the caller to show.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.topics import Topic, partition_count


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FoundTopic:
    partitions: int
    configs: Mapping[str, str]
    """Those that the broker tells; an embedded one may tell none, which is no difference."""


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
    created: tuple[str, ...]
    differences: tuple[TopicDifference, ...]


class Topics(Protocol):
    """What a broker can be asked about topics."""

    async def find(self, names: Sequence[str]) -> dict[str, FoundTopic]:
        """Those that exist."""
        ...

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """One that somebody else makes at the same time is no error. Return when clients can use them."""
        ...


def topic_specs(topics: Iterable[Topic], partitions: int, replication_factor: int) -> tuple[TopicSpec, ...]:
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
    found = await broker.find([spec.name for spec in specs])
    return tuple(difference for spec in specs for difference in _differences(spec, found.get(spec.name)))


async def apply(broker: Topics, specs: Sequence[TopicSpec]) -> Applied:
    """Idempotent: creates what is missing, by name."""
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
