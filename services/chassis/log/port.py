"""The log as the services see it: a port with two implementations, `chassis.kafka` and the simulated log of the tests.

Both pass `tests/contract/test_log.py`. They promise that records of one partition keep the order in which they were
appended, that a resolved append is durable, and that a reader sees every record from its position on, once per
position. They do not promise that an append is stored once: after a retry whose first acknowledgement was lost it may
be there twice. Events carry ids, so the fold recognises the second one.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from schemas.errors import ThreadlogError

NO_OFFSETS: Mapping["TopicPartition", int] = MappingProxyType({})


class LogError(ThreadlogError):
    """The log refuses: a record is too large, rights are missing, a producer is fenced. Trying again does not help."""


class LogUnavailableError(LogError):
    """The log did not answer within the delivery timeout. What was sent may have been stored all the same."""

    retriable: ClassVar[bool] = True


class OffsetOutOfRangeError(LogError):
    """A reader's position is not in the log: retention has deleted it, or the topic was made anew."""


class Outgoing(NamedTuple):
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    """None lets the client stamp it when the record is put into a batch."""


class Incoming(NamedTuple):
    """A named tuple because one is made for every record read: a frozen dataclass takes six times as long."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Appender(Protocol):
    def append(self, topic: str, partition: int, records: Sequence[Outgoing]) -> asyncio.Future[tuple[int, ...]]:
        """Queue the records and return at once; the future gives their offsets once the broker has acknowledged them.

        One outbox per partition with one batch in flight: all that is queued meanwhile goes as the next batch. Records
        of one call stay together and in order where they fit a batch. Retriable errors are retried with backoff until
        the delivery timeout, then the future fails with LogUnavailableError; any other failure is a LogError.
        A failed future that nobody awaits is not reported: the outbox counts it.
        """
        ...

    def append_lossy(self, topic: str, partition: int, records: Sequence[Outgoing]) -> None:
        """Append progress. It is dropped, and counted, if the outbox is over its limit for it or if the append
        fails.
        """
        ...

    async def flush(self) -> None:
        """Return when everything that was queued before has been acknowledged or has failed."""
        ...


class Rebalance(Protocol):
    """What a member of a group does when partitions come and go.

    Both are called from within `poll`, one after the other, so they never run while the caller handles records. What
    they raise, `poll` raises. After a change of members `revoked` is called only for partitions that do not come back,
    once that is known.
    """

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop to work for these partitions: another member may have them already."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the start offset of each new partition. A partition that is left out starts at its beginning."""
        ...


class Reader(Protocol):
    """Reads partitions from offsets that it is told. It never starts at a committed offset."""

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        """Wait for at least one record or the timeout. Offsets per partition ascend, not always without gaps.

        Raise LogError when the reader cannot go on, such as OffsetOutOfRangeError, or what a Rebalance raised.
        """
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        ...

    def position(self, tp: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns for an assigned partition."""
        ...

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the whole assignment of a reader outside any group. Partitions that it has already keep their
        position.
        """
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue an assigned partition at this offset."""
        ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until they are resumed. Their positions stay."""
        ...

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        ...

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets of the next records, for lag tools only. Errors are counted, never raised."""
        ...

    async def close(self) -> None:
        """Leave the group, if there is one. `Rebalance.revoked` is not called, since the caller knows."""
        ...


class Log(Protocol):
    """One connection to a log. Its methods raise LogError."""

    @property
    def appender(self) -> Appender:
        """The way to append, one for all topics."""
        ...

    async def group_reader(
        self, topics: Sequence[str], group: str, rebalance: Rebalance, instance_id: str | None = None
    ) -> Reader:
        """Join a group and return its reader, whose first `poll` calls `Rebalance.assigned`.

        With an instance id the membership is static: a process that restarts within the session timeout gets its
        partitions back, and no other member notices.
        """
        ...

    async def reader(self, offsets: Mapping[TopicPartition, int] = NO_OFFSETS) -> Reader:
        """Return a reader outside any group, which reads these partitions from these offsets."""
        ...

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions that the topic had when this connection first asked."""
        ...

    def partition_for(self, key: bytes, partition_count: int) -> int:
        """Return the partition of a key, as Kafka's default partitioner does (murmur2), so that any client agrees."""
        ...

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition that retention has left."""
        ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that the next record of each partition will get."""
        ...

    async def cluster_id(self) -> str:
        """Return the id of the cluster, which tells two logs with equal topics apart. Empty if the broker has none."""
        ...

    async def close(self) -> None:
        """Flush, then close readers that are still open, the appender and the connections."""
        ...
