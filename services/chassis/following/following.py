"""One reader for all topics of events, and a fold loop for each topic: what a service runs that follows threads.

The topics have equal partition counts and the group assigns by range, so a member has the same partition numbers of
each topic. One reader instead of two halves the connections and requests, and makes a rebalance one agreement.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Generic

import asyncpg
from prometheus_client import Gauge

from schemas.topics import EPHEMERAL_EVENTS, THREAD_EVENTS, Topic
from services.chassis.following.fold_loop import FoldLoop, Follower
from services.chassis.following.followed_threads import Partition, Work
from services.chassis.following.limits import FoldLoopLimits
from services.chassis.log.port import Log, Reader, TopicPartition
from services.chassis.process.lifecycle import Lifecycle
from services.chassis.process.pacing import Pace
from services.chassis.service import Service
from services.chassis.threads.postgres_states import PostgresStates

FOLLOWED: Sequence[Topic] = (THREAD_EVENTS, EPHEMERAL_EVENTS)


def fold_loop(log: Log, pool: asyncpg.Pool, topic: Topic, follower: Follower[Work]) -> FoldLoop[Work]:
    """Make the loop of one topic. Ephemeral threads are stored nowhere, so their loop has no store."""
    states = PostgresStates(pool) if topic is THREAD_EVENTS else None
    return FoldLoop(log, states, follower, topic.name, FoldLoopLimits(), states)


class Following(Generic[Work]):
    """The reading of all topics. It implements `chassis.log.port.Rebalance` and passes partitions on to its loops."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._loops: Mapping[str, FoldLoop[Work]] = {}
        self._partitions = 0

    def not_ready(self) -> str | None:
        """Return why the service is not ready, or None. A service that stops or starts is not ready."""
        if self._lifecycle.stopping.is_set():
            return "stopping"
        if not self._loops:
            return "starting"
        return next((reason for loop in self._loops.values() if (reason := loop.not_ready())), None)

    def positions(self) -> dict[TopicPartition, int]:
        """Return by partition the offset of the first record that was not read."""
        return {tp: offset for loop in self._loops.values() for tp, offset in loop.positions().items()}

    def waits_for_states(self) -> bool:
        """Return whether a loop waits for rows of the database."""
        return any(loop.waits_for_states() for loop in self._loops.values())

    def partitions(self, topic: Topic) -> Sequence[Partition[Work]]:
        return list(self._loops[topic.name].partitions.values())

    def quarantined(self) -> int:
        """Return how many threads are set aside."""
        return sum(len(at.quarantine) for loop in self._loops.values() for at in loop.partitions.values())

    async def begin(
        self,
        service: Service,
        loops: Mapping[Topic, FoldLoop[Work]],
        group: str,
        member: str,
        stopping: asyncio.Event,
        lag: tuple[Gauge, Gauge],
    ) -> "asyncio.Task[None]":
        """Join the group and start to read; return the task that reads until `stopping` is set.

        `lag` are the gauges that show how far the reader is behind: in records and in seconds.
        """
        by_topic = {topic.name: loop for topic, loop in loops.items()}
        self._loops = by_topic
        self._partitions = min([await service.log.partition_count(topic) for topic in by_topic])
        reader = await service.log.group_reader(list(by_topic), group, self, member)
        service.measure_lag(self.positions, *lag, self.waits_for_states)
        for loop in by_topic.values():
            loop.begin(self._lifecycle.spawn)
        return self._lifecycle.spawn(self._run(reader, stopping, Pace()), "fold loops")

    async def _run(self, reader: Reader, stopping: asyncio.Event, pace: Pace) -> None:
        """Read until `stopping` is set. Raise LogError when the log cannot be read any more."""
        poll_ms = min(loop.poll_ms for loop in self._loops.values())
        while not stopping.is_set():
            batches = await reader.poll(poll_ms)
            for topic, loop in self._loops.items():
                loop.take(reader, [batch for batch in batches if batch[0].topic == topic])
            if batches:
                reader.commit_soon({tp: records[-1].offset + 1 for tp, records in batches})
                await pace.pause_after([record.key for _, records in batches for record in records])

    # Rebalance

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Start to follow new partitions; return the offset from which each is read.

        Partitions that were added to a topic since the start are left out: threads are placed by the old number.
        """
        known = frozenset([tp for tp in partitions if tp.partition < self._partitions])
        of_loops = [loop.assigned(_of(known, topic)) for topic, loop in self._loops.items()]
        return {tp: start for starts in await asyncio.gather(*of_loops) for tp, start in starts.items()}

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop to follow partitions that another member has now."""
        for topic, loop in self._loops.items():
            await loop.revoked(_of(partitions, topic))


def _of(partitions: frozenset[TopicPartition], topic: str) -> frozenset[TopicPartition]:
    return frozenset(tp for tp in partitions if tp.topic == topic)
