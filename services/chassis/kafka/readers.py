"""Readers on Kafka: a member of a group, and one that reads what it is told to.

A broker answers the requests of one connection one after the other, so a fetch that waits for records holds back the
next one for up to `kafka_fetch_max_wait_ms`. Where positions change (a seek, a new assignment, a resume) the fetch in
flight is therefore dropped together with its connection: `_drop_fetches`.

aiokafka revokes all partitions of a group on every change of members. A group reader keeps the positions of those that
come back, holds new ones paused until `Rebalance.assigned` has said where they start, and calls the rebalance callbacks
from `poll`. No reader starts at committed offsets: these are for lag tools.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as KafkaTopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaError, NoOffsetForPartitionError
from aiokafka.errors import OffsetOutOfRangeError as KafkaOffsetOutOfRangeError
from aiokafka.protocol.fetch import FetchRequest

from services.chassis.kafka.producer import log_error
from services.chassis.log.port import Incoming, LogError, OffsetOutOfRangeError, Rebalance, TopicPartition

CLOSE_SECONDS = 5.0
COMMIT_INTERVAL_SECONDS: Final = 2.0
"""Pause between two commits of offsets. Only lag tools read them, so they may be late."""
REBALANCE_NOTICE_SECONDS = 0.1
"""A waiting poll of a group looks this often whether the assignment changed."""
POLL_GRACE_SECONDS = 0.05
"""aiokafka's getmany waits without a limit while a group is rebalancing; this is how late its timeout may be."""

_new_tuple = tuple.__new__

logger = structlog.get_logger()


class Lookup(Protocol):
    """What a reader needs of the façade that made it."""

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    @property
    def fatal(self) -> LogError | None: ...


class _Reader:
    """What both kinds share. `_positions` holds the assigned partitions that may be read, with their next offset."""

    def __init__(self, consumer: AIOKafkaConsumer, lookup: Lookup, records_max: int) -> None:
        self._consumer = consumer
        self._lookup = lookup
        self._records_max = records_max
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._closed = False

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def position(self, tp: TopicPartition) -> int:
        return self._positions[tp]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if tp not in self._positions:
            raise LogError(f"cannot seek in {tp.topic}/{tp.partition}: this reader is not assigned to it")
        self._positions[tp] = offset
        if self._consumes(tp):
            self._drop_fetches(same_assignment=True)
            self._consumer.seek(_theirs(tp), offset)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._lookup.end_offsets(tps)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._paused.add(tp)
            if self._consumes(tp):
                self._consumer.pause(_theirs(tp))

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        resumed = self._paused.intersection(tps)
        self._paused -= resumed
        if resumed:
            self._drop_fetches(same_assignment=True)
        for tp in resumed:
            if tp in self._positions and self._consumes(tp):
                self._consumer.resume(_theirs(tp))
                self._consumer.seek(_theirs(tp), self._positions[tp])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # aiokafka's stop cancels and awaits a task that start has made. If that has not begun yet, the cancellation is
        # felt here, and nothing is closed.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._consumer.stop()
        except (TimeoutError, KafkaError) as error:
            logger.warning("log_reader_close_failed", error=repr(error))

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _consumes(self, tp: TopicPartition) -> bool:
        return tp in self._consumer.assignment()

    def _check(self) -> None:
        if self._closed:
            raise LogError("the reader is closed")
        if self._lookup.fatal is not None:
            raise self._lookup.fatal

    async def _fetch(self, timeout_seconds: float) -> list[tuple[TopicPartition, list[Incoming]]]:
        try:
            async with asyncio.timeout(timeout_seconds + POLL_GRACE_SECONDS):
                fetched = await self._consumer.getmany(
                    timeout_ms=int(timeout_seconds * 1000), max_records=self._records_max
                )
        except (TimeoutError, NoOffsetForPartitionError):
            return []
        except KafkaOffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(_explain_out_of_range(error)) from error
        except KafkaError as error:
            raise log_error(error, "read from the log") from error
        positions = self._positions
        polled: list[tuple[TopicPartition, list[Incoming]]] = []
        for kafka_tp, records in fetched.items():
            tp = TopicPartition(*kafka_tp)
            if records and tp in positions:
                incoming = [_incoming(record) for record in records]
                positions[tp] = incoming[-1].offset + 1
                polled.append((tp, incoming))
        return polled

    def _drop_fetches(self, *, same_assignment: bool) -> None:
        """End the fetch in flight, so that the next one goes out at once, on a new connection. To be called before the
        change that it is for.

        aiokafka has no call for it, and its fetcher has to learn it in the right way, else it sleeps: with a new
        assignment it cancels its fetches itself, so they must still wait; otherwise a cancelled answer is what it takes
        as "not wanted any more". A bare close of the connection would look like a broken one and cost a backoff.
        The contract suite notices when another version of aiokafka differs: records are then read too late.
        """
        for (_, group), connection in self._consumer._client._conns.items():  # noqa: SLF001
            requests = connection._requests  # noqa: SLF001
            fetches = [each for each in requests if each[1] is not None and each[1].API_KEY == FetchRequest.API_KEY]
            if group != ConnectionGroup.DEFAULT or not fetches:
                continue
            for fetch in fetches:
                requests.remove(fetch)
                if same_assignment:
                    fetch[2].cancel()
            connection.close()


class AssignedReader(_Reader):
    def __init__(self, consumer: AIOKafkaConsumer, lookup: Lookup, records_max: int) -> None:
        super().__init__(consumer, lookup, records_max)
        self._has_assignment = asyncio.Event()

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        positions = {tp: self._positions.get(tp, offset) for tp, offset in offsets.items()}
        if positions.keys() == self._positions.keys():
            return
        self._positions = positions
        self._paused &= positions.keys()
        self._drop_fetches(same_assignment=False)
        if not positions:
            self._has_assignment.clear()
            self._consumer.unsubscribe()
            return
        self._consumer.assign([_theirs(tp) for tp in positions])
        for tp, offset in positions.items():
            self._consumer.seek(_theirs(tp), offset)
            if tp in self._paused:
                self._consumer.pause(_theirs(tp))
        self._has_assignment.set()

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        self._check()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if not self._has_assignment.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._has_assignment.wait()
            except TimeoutError:
                return []
        return await self._fetch(max(0.0, deadline - loop.time()))

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Outside a group there is nothing to commit to."""


class GroupReader(_Reader):
    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        lookup: Lookup,
        records_max: int,
        rebalance: Rebalance,
        commit_interval_seconds: float,
        commit_failed: Callable[[], None],
    ) -> None:
        super().__init__(consumer, lookup, records_max)
        self._rebalance = rebalance
        self._commit_interval_seconds = commit_interval_seconds
        self._commit_failed = commit_failed
        self._commits: dict[TopicPartition, int] = {}
        self._committing: asyncio.Task[None] | None = None
        self._coming: frozenset[TopicPartition] | None = None
        """An assignment that the rebalance callbacks have not been told of yet."""
        self._joined = asyncio.Event()

    async def join(self, topics: Iterable[str]) -> None:
        self._consumer.subscribe(list(topics), listener=_Listener(self._on_assigned))
        await self._consumer.start()
        await self._joined.wait()

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002
        raise LogError("a member of a group is assigned by its group")

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            self._check()
            while self._coming is not None:
                await self._apply(self._coming)
            left_seconds = max(0.0, deadline - loop.time())
            polled = await self._fetch(min(left_seconds, REBALANCE_NOTICE_SECONDS))
            if polled or (left_seconds <= REBALANCE_NOTICE_SECONDS and self._coming is None):
                return polled

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._commits.update(offsets)
        if self._committing is None and not self._closed:
            self._committing = asyncio.get_running_loop().create_task(self._commit())

    async def close(self) -> None:
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.gather(self._committing, return_exceptions=True)
        await super().close()

    def _on_assigned(self, assigned: Iterable[KafkaTopicPartition]) -> None:
        """Called by the coordinator's task when the group has agreed. It must not wait: until it returns, a partition
        without a position would be looked up in the committed offsets.
        """
        coming = frozenset(TopicPartition(*tp) for tp in assigned)
        for tp in coming:
            self._consumer.seek(_theirs(tp), self._positions.get(tp, 0))
            if tp in self._paused or tp not in self._positions:
                self._consumer.pause(_theirs(tp))
        # The fetch of the assignment before still occupies the connection.
        self._drop_fetches(same_assignment=True)
        self._coming = coming
        self._joined.set()

    async def _apply(self, coming: frozenset[TopicPartition]) -> None:
        lost = frozenset(self._positions.keys() - coming)
        gained = coming - self._positions.keys()
        self._coming = None  # another assignment may come while the callbacks run
        for tp in lost:
            del self._positions[tp]
        self._paused &= coming
        if lost:
            await self._rebalance.revoked(lost)
        if gained:
            offsets = dict(await self._rebalance.assigned(gained))
            unsaid = gained - offsets.keys()
            if unsaid:
                offsets |= await self._lookup.begin_offsets(unsaid)
            self._drop_fetches(same_assignment=True)
            for tp in gained:
                self._positions[tp] = offsets[tp]
                if self._consumes(tp):
                    self._consumer.seek(_theirs(tp), offsets[tp])
                    if tp not in self._paused:
                        self._consumer.resume(_theirs(tp))

    async def _commit(self) -> None:
        while self._commits:
            await asyncio.sleep(self._commit_interval_seconds)
            offsets = {_theirs(tp): offset for tp, offset in self._commits.items() if self._consumes(tp)}
            self._commits.clear()
            if not offsets:
                continue
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._consumer.commit(offsets)
            except (KafkaError, TimeoutError):
                self._commit_failed()
        self._committing = None


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, on_assigned: Callable[[Iterable[KafkaTopicPartition]], None]) -> None:
        self._on_assigned = on_assigned

    def on_partitions_revoked(self, revoked: set[KafkaTopicPartition]) -> None:
        """All are revoked on every change of members: nothing is known yet."""

    def on_partitions_assigned(self, assigned: set[KafkaTopicPartition]) -> None:
        self._on_assigned(assigned)


def _theirs(tp: TopicPartition) -> KafkaTopicPartition:
    return KafkaTopicPartition(tp.topic, tp.partition)


def _incoming(record: Any) -> Incoming:
    headers = record.headers
    for _, value in headers:
        if value is None:  # a null header, which no producer of ours writes, reads as an empty one
            headers = tuple((name, b"" if content is None else content) for name, content in headers)
            break
    return _new_tuple(
        Incoming, (record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, headers)
    )


def _explain_out_of_range(error: KafkaOffsetOutOfRangeError) -> str:
    asked = error.args[0] if error.args else {}
    where = ", ".join(f"offset {offset} of {tp.topic}/{tp.partition}" for tp, offset in dict(asked).items())
    return (
        f"{where or 'a position'} is not in the log: it was deleted by retention, or this is another topic than the "
        "one that the position was stored for"
    )
