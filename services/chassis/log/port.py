"""The log as the services see it: a port with two implementations, `chassis.kafka` and the simulated log of the tests.

Both pass `tests/contract/test_log.py`. What they promise: records of one partition keep the order in which they were
appended; a resolved append is durable; a reader sees every record from its position on, once per position, but an
append may have been stored twice (a retry whose first try was acknowledged into the void).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from schemas.errors import ThreadlogError

NO_OFFSETS: Mapping["TopicPartition", int] = MappingProxyType({})


class LogError(ThreadlogError):
    """The log refused: an oversized record, missing rights, a fenced producer. Trying again does not help."""


class LogUnavailableError(LogError):
    """The log did not answer within the delivery timeout. What was sent may have been stored all the same."""

    retriable: ClassVar[bool] = True


class OffsetOutOfRangeError(LogError):
    """A reader's position is not in the log: deleted by retention, or the topic is another one than it was."""


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
        """For progress: dropped, and counted, when the outbox already holds more than its limit, or when it fails."""
        ...

    async def flush(self) -> None:
        """Return when everything that was queued before has been acknowledged or has failed."""
        ...


class Rebalance(Protocol):
    """What a member of a group does when partitions come and go. Both are called from within `poll`, one after the
    other, so they never run beside the caller's own handling of records; what they raise, `poll` raises.
    After a change of members `revoked` is called only for partitions that do not come back, once that is known.
    """

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None: ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The start offset of each newly assigned partition; one that is left out starts at its beginning."""
        ...


class Reader(Protocol):
    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        """Wait for at least one record or the timeout. Offsets per partition ascend, not always without gaps.

        Raise LogError when the reader cannot go on, such as OffsetOutOfRangeError, or what a Rebalance raised.
        """
        ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record that `poll` gives for an assigned partition."""
        ...

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Hand-assigned readers only. The whole new assignment; partitions already assigned keep their position."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None: ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def pause(self, tps: Iterable[TopicPartition]) -> None: ...

    def resume(self, tps: Iterable[TopicPartition]) -> None: ...

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        """For lag tools only: `offsets` are those of the next records. Errors are counted, never raised."""
        ...

    async def close(self) -> None:
        """Leave the group, if any. `Rebalance.revoked` is not called: the caller knows."""
        ...


class Log(Protocol):
    @property
    def appender(self) -> Appender: ...

    async def group_reader(
        self, topics: Sequence[str], group: str, rebalance: Rebalance, instance_id: str | None = None
    ) -> Reader:
        """A member of a group, joined; its first `poll` calls `Rebalance.assigned`. With an instance id its membership
        is static: a restart within the session timeout takes its partitions back and no other member notices.
        """
        ...

    async def reader(self, offsets: Mapping[TopicPartition, int] = NO_OFFSETS) -> Reader:
        """A reader outside any group that reads what it is told to."""
        ...

    async def partition_count(self, topic: str) -> int: ...

    def partition_for(self, key: bytes, partition_count: int) -> int:
        """As Kafka's default partitioner (murmur2), so that any client agrees."""
        ...

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will get."""
        ...

    async def cluster_id(self) -> str: ...

    async def close(self) -> None:
        """Flush, then close readers that are still open, the appender and the connections."""
        ...
