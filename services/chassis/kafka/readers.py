"""Readers on Kafka: `GroupReader` is a member of a group, `AssignedReader` reads what it is told to.

**Fetches in flight.** A broker answers the requests of one connection one after the other, so a fetch that waits for
records holds back the next one for up to `kafka_fetch_max_wait_ms`. When positions change (a seek, a new assignment, a
resume), the fetch in flight is therefore dropped together with its connection: `_drop_fetches`.

**Rebalances.** aiokafka revokes all partitions of a group on every change of members, and gives most of them back. A
group reader hides that. It keeps the positions of partitions that come back, and keeps new ones paused until
`Rebalance.assigned` has said where they start. The coordinator's task only notes the new assignment; the callbacks run
inside the next `poll`. So the owner of the reader never handles records and a rebalance at the same time.

**Positions.** No reader starts at a committed offset: commits come after the fact and are for lag tools. Where to start
is stored with the effects (`Rebalance.assigned`). If the process dies between an effect and its commit, nothing
differs.
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

CLOSE_SECONDS: Final = 5.0
"""How long leaving a group or committing may take. A broker that is away must not hold up the end of a process."""
COMMIT_INTERVAL_SECONDS: Final = 2.0
"""Pause between two commits of offsets. Only lag tools read them, so they may be late."""
REBALANCE_NOTICE_SECONDS: Final = 0.1
"""Pause between two looks of a waiting poll whether the assignment has changed. It delays every takeover, so it is
short.
"""
POLL_GRACE_SECONDS: Final = 0.05
"""How late the timeout of aiokafka's getmany may be. While a group is rebalancing, getmany waits without a limit."""

_new_tuple = tuple.__new__

logger = structlog.get_logger()


class Lookup(Protocol):
    """What a reader needs of the façade that made it."""

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    @property
    def fatal(self) -> LogError | None: ...


class _Reader:
    """What both kinds share.

    `_positions` contains the assigned partitions that may be read, with the offset of their next record. It is the
    truth about positions: aiokafka's own are set from it, and answers for a partition that is not in it are dropped.
    """

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
        """Return what aiokafka has, and move the positions behind it. Raise the port's errors."""
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
        """End the fetch in flight, so that the next one is sent at once, on a new connection. Call it before the
        change.

        aiokafka has no call for this, and its fetcher sleeps unless it learns of it in the right way. With a new
        assignment it cancels its fetches itself, so they must still be waiting. Otherwise it takes a cancelled answer
        as "not wanted any more". Closing the connection alone would look like a broken connection and cost a backoff.
        The contract suite notices if another version of aiokafka differs: records are then read too late.
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
    """A reader outside any group. Without an assignment its poll waits for one."""

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
        """Do nothing: a reader outside any group has nothing to commit to."""


class GroupReader(_Reader):
    """A member of a group. `_on_assigned` runs in the coordinator's task, everything else in the owner's."""

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
        """An assignment that the rebalance callbacks do not know yet; None if they know the newest one."""
        self._joined = asyncio.Event()

    async def join(self, topics: Iterable[str]) -> None:
        """Join the group; return once it has agreed on the first assignment."""
        self._consumer.subscribe(list(topics), listener=_Listener(self._on_assigned))
        await self._consumer.start()
        await self._joined.wait()

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002
        raise LogError("a member of a group is assigned by its group")

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        """Apply a new assignment if there is one, then return records. A wait is cut into short ones to notice both."""
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
        """Note a new assignment. The coordinator's task calls it when the group has agreed.

        It must not wait, and it must seek each partition: one without a position would be looked up in the committed
        offsets. New partitions stay paused, at an offset that is never read, until `_apply` knows their start.
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
        """Tell the owner which partitions are gone and which are new, in this order, and start to read the new ones.

        Lost partitions leave `_positions` first, so that records of theirs that are still on the way are dropped.
        """
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
        """Commit what has gathered, again and again until nothing is left. A failed commit is only counted."""
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
        """Do nothing: all partitions are revoked on every change of members, and most come back."""

    def on_partitions_assigned(self, assigned: set[KafkaTopicPartition]) -> None:
        self._on_assigned(assigned)


def _theirs(tp: TopicPartition) -> KafkaTopicPartition:
    """Return aiokafka's name of a partition."""
    return KafkaTopicPartition(tp.topic, tp.partition)


def _incoming(record: Any) -> Incoming:
    """Return a record as the port has it. It runs for every record that is read, so it does nothing twice."""
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
