"""The log in memory: one `SimulatedBroker`, and for each process a `SimulatedLog` connected to it.

It passes the same contract suite as Kafka and is deterministic: it waits only on the event loop's timers (see
`virtual_time`), and what goes wrong is drawn from a seeded `Faults`. Appends go through the same outbox as on Kafka.

What it can do to a program: acknowledgements that get lost after the batch was stored, requests that get lost, requests
that are stored late, after the client gave up and sent again; slow appends, slow fetches, records in small pieces;
members that die (`SimulatedLog.crash`) or stand still until their group has given their partitions away (`pause`,
`resume`), or lose the broker alone (`cut`, `mend`), zombies that do not know it yet, groups that take their time to agree, a broker that is away for a while. A
producer without idempotence stores a retried batch twice; with it, once.

What the broker does it does in no process's context (see `virtual_time.Host`): a process that stands still has its
requests stored all the same, and hears of it later.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

from services.chassis.clock import Clock
from services.chassis.kafka.kafka_log import partition_for
from services.chassis.log.metrics import LogCounts
from services.chassis.log.outbox import BatchResult, Outboxes, OutboxLimits
from services.chassis.log.port import (
    NO_OFFSETS,
    Incoming,
    LogError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    Outgoing,
    Reader,
    Rebalance,
    TopicPartition,
)
from tests.support.simulated.group import Group, OnAgreed
from tests.support.simulated.virtual_time import NOWHERE

MIB = 1_048_576
LIMITS = OutboxLimits(
    batch_bytes_max=MIB,
    queue_bytes_max=64 * MIB,
    lossy_bytes_max=MIB,
    record_bytes_max=2 * MIB - 1_024,
    delivery_timeout_seconds=30,
)

Fate = Literal["stored", "ack_lost", "request_lost", "late"]


class Faults:
    """What goes wrong, drawn from a seed. Without arguments nothing does. A subclass can decide case by case."""

    def __init__(
        self,
        seed: int = 0,
        *,
        ack_lost: float = 0.0,
        request_lost: float = 0.0,
        late: float = 0.0,
        append_seconds_max: float = 0.0,
        fetch_seconds_max: float = 0.0,
        poll_records_max: int = 0,
        rebalance_seconds_max: float = 0.0,
        heartbeat_seconds_max: float = 0.0,
        retry_seconds: float = 0.5,
    ) -> None:
        self._random = random.Random(seed)
        self._weights = {"ack_lost": ack_lost, "request_lost": request_lost, "late": late}
        self._append_seconds_max = append_seconds_max
        self._fetch_seconds_max = fetch_seconds_max
        self._poll_records_max = poll_records_max
        self._rebalance_seconds_max = rebalance_seconds_max
        self._heartbeat_seconds_max = heartbeat_seconds_max
        self.retry_seconds = retry_seconds
        """After how long a client takes an unanswered batch for lost."""

    def fate(self, tp: TopicPartition, records: Sequence[Outgoing]) -> Fate:
        drawn = self._random.random()
        for fate, weight in self._weights.items():
            if drawn < weight:
                return fate  # type: ignore[return-value]  # the keys are fates
            drawn -= weight
        return "stored"

    def append_seconds(self) -> float:
        return self._draw_seconds(self._append_seconds_max)

    def fetch_seconds(self) -> float:
        return self._draw_seconds(self._fetch_seconds_max)

    def rebalance_seconds(self) -> float:
        return self._draw_seconds(self._rebalance_seconds_max)

    def heartbeat_seconds(self) -> float:
        """How long a member that its group gave up does not know it, once it runs again."""
        return self._draw_seconds(self._heartbeat_seconds_max)

    def poll_records(self, limit: int) -> int:
        """How many of the records that are there one poll gives."""
        return self._random.randint(1, self._poll_records_max) if self._poll_records_max else limit

    def _draw_seconds(self, seconds_max: float) -> float:
        return self._random.uniform(0, seconds_max) if seconds_max else 0.0


@dataclass(slots=True)
class _Partition:
    records: list[Incoming] = field(default_factory=list)
    begin: int = 0
    stored_batches: dict[int, tuple[Sequence[Outgoing], int]] = field(default_factory=dict)
    """The last batch of each idempotent producer: a retry of it is known by being the same object."""

    @property
    def end(self) -> int:
        return self.begin + len(self.records)


class SimulatedBroker:
    def __init__(
        self,
        topics: Mapping[str, int],
        clock: Clock,
        *,
        faults: Faults | None = None,
        idempotent: bool = True,
        session_seconds: float = 6.0,
    ) -> None:
        self.faults = faults if faults is not None else Faults()
        self.idempotent = idempotent
        self.session_seconds = session_seconds
        self.is_away = False
        """While true nothing is stored, fetched or looked up, and no group agrees on anything."""
        self.on_stored: Callable[[Sequence[Incoming]], None] = lambda _records: None
        self.on_agreed: OnAgreed = lambda _group, _assigned: None
        self._clock = clock
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._counts: dict[str, int] = {}
        self._groups: dict[str, Group] = {}
        self._readers: list[_SimulatedReader] = []
        self._clients = 0
        for name, count in topics.items():
            self.add_topic(name, count)

    def add_topic(self, name: str, partitions: int) -> None:
        self._counts[name] = partitions
        self._partitions |= {TopicPartition(name, number): _Partition() for number in range(partitions)}

    def give_partitions(self, name: str, partitions: int) -> None:
        """So many in all. Groups hear of it with their next agreement."""
        found = range(self._counts[name], partitions)
        self._counts[name] = partitions
        self._partitions |= {TopicPartition(name, number): _Partition() for number in found}

    def connect(self, name: str = "client", limits: OutboxLimits = LIMITS) -> "SimulatedLog":
        """A client of its own, as a process would have."""
        self._clients += 1
        return SimulatedLog(self, f"{name}-{self._clients:04}", self._clients, limits)

    def records(self, topic: str, partition: int) -> tuple[Incoming, ...]:
        return tuple(self._partitions[TopicPartition(topic, partition)].records)

    def end(self, topic: str, partition: int) -> int:
        return self._partitions[TopicPartition(topic, partition)].end

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return dict(self._groups[group].committed)

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """As retention does."""
        partition = self._partitions[tp]
        del partition.records[: max(0, offset - partition.begin)]
        partition.begin = max(partition.begin, offset)

    def come_back(self) -> None:
        self.is_away = False
        for reader in self._readers:
            reader.wake()

    # For its clients

    def has(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    def partition_count(self, topic: str) -> int:
        if topic not in self._counts:
            raise LogUnavailableError(f"topic {topic} does not exist")
        return self._counts[topic]

    def partition(self, tp: TopicPartition) -> _Partition:
        if self.is_away or tp not in self._partitions:
            raise LogUnavailableError(f"{tp.topic}/{tp.partition} cannot be reached")
        return self._partitions[tp]

    def store(self, producer: int, tp: TopicPartition, records: Sequence[Outgoing]) -> int:
        partition = self.partition(tp)
        former, offset = partition.stored_batches.get(producer, (None, 0))
        if self.idempotent and former is records:
            return offset
        base = partition.end
        now_ms = self._clock.now_ms()
        stored = [
            Incoming(
                tp.topic,
                tp.partition,
                base + index,
                record.timestamp_ms if record.timestamp_ms is not None else now_ms,
                record.key,
                record.value,
                record.headers,
            )
            for index, record in enumerate(records)
        ]
        partition.records.extend(stored)
        partition.stored_batches[producer] = (records, base)
        self.on_stored(stored)
        for reader in self._readers:
            if reader.reads(tp):
                reader.wake()
        return base

    def group(self, name: str) -> Group:
        if name not in self._groups:
            self._groups[name] = Group(self, name)
        return self._groups[name]

    def add_reader(self, reader: "_SimulatedReader") -> None:
        self._readers.append(reader)

    def remove_reader(self, reader: "_SimulatedReader") -> None:
        if reader in self._readers:
            self._readers.remove(reader)


@dataclass(slots=True)
class _Line:
    """From one process to the broker."""

    is_cut: bool = False

    def reach(self, broker: SimulatedBroker, tp: TopicPartition) -> _Partition:
        if self.is_cut:
            raise LogUnavailableError(f"{tp.topic}/{tp.partition} cannot be reached from here")
        return broker.partition(tp)


class SimulatedLog:
    """One process's connection. `crash` is what SIGKILL does to it."""

    def __init__(self, broker: SimulatedBroker, name: str, producer: int, limits: OutboxLimits) -> None:
        self._broker = broker
        self._name = name
        self._readers: list[_SimulatedReader] = []
        self._joins = 0
        self._line = _Line()
        self.counts = LogCounts()
        self.appender = Outboxes(_SimulatedSender(broker, producer, self._line), limits, self.counts.outbox)

    async def group_reader(
        self, topics: Sequence[str], group: str, rebalance: Rebalance, instance_id: str | None = None
    ) -> Reader:
        self._joins += 1
        member = instance_id if instance_id is not None else f"{self._name}-{self._joins}"
        is_static = instance_id is not None
        reader = _GroupReader(self._broker, self._line, self._broker.group(group), member, rebalance, is_static)
        reader.count_failed_commit = self.counts.count_failed_commit
        for topic in topics:
            self._broker.partition_count(topic)
        self._readers.append(reader)
        self._broker.add_reader(reader)
        self._broker.group(group).join(reader, topics)
        await reader.joined.wait()
        return reader

    async def reader(self, offsets: Mapping[TopicPartition, int] = NO_OFFSETS) -> Reader:
        reader = _AssignedReader(self._broker, self._line)
        reader.assign(offsets)
        self._readers.append(reader)
        self._broker.add_reader(reader)
        return reader

    async def partition_count(self, topic: str) -> int:
        return self._broker.partition_count(topic)

    def partition_for(self, key: bytes, partition_count: int) -> int:
        return partition_for(key, partition_count)

    async def begin_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._line.reach(self._broker, tp).begin for tp in tps}

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._line.reach(self._broker, tp).end for tp in tps}

    async def cluster_id(self) -> str:
        return "simulated"

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close()
        await self.appender.flush()
        self.appender.close(LogError("the log is closed"))

    def crash(self) -> None:
        """Nothing is flushed and no group is left: what is under way may still be stored, and the group waits for its
        session timeout, or for a static member to come back.
        """
        self.appender.close(LogError("the process is gone"))
        for reader in self._readers:
            reader.vanish()

    def pause(self) -> None:
        """The process stands still. Its groups give its partitions away after the session timeout."""
        for reader in self._readers:
            reader.pause_member()

    def resume(self) -> None:
        for reader in self._readers:
            reader.resume_member()

    def cut(self) -> None:
        """The process runs on, and neither reaches the broker nor is reached by it."""
        self._line.is_cut = True
        self.pause()

    def mend(self) -> None:
        self._line.is_cut = False
        self.resume()
        for reader in self._readers:
            reader.wake()


class _SimulatedSender:
    def __init__(self, broker: SimulatedBroker, producer: int, line: _Line) -> None:
        self._broker = broker
        self._line = line
        self._producer = producer
        self._loop = asyncio.get_running_loop()

    def send(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        tp = TopicPartition(topic, partition)
        faults = self._broker.faults
        fate = "request_lost" if self._line.is_cut else faults.fate(tp, records)
        if fate in {"stored", "ack_lost"}:
            answer = _Answer(done, copy_context())
            self._later(faults.append_seconds(), self._store, tp, records, answer, fate)
            return
        if fate == "late":
            self._later(faults.retry_seconds + faults.append_seconds(), self._store_late, tp, records)
        self._loop.call_later(faults.retry_seconds, done, LogUnavailableError(f"no answer from {topic}/{partition}"))

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_later(seconds, call, *arguments, context=NOWHERE)

    def _store(self, tp: TopicPartition, records: Sequence[Outgoing], answer: "_Answer", fate: Fate) -> None:
        faults = self._broker.faults
        try:
            offset = self._broker.store(self._producer, tp, records)
        except LogUnavailableError as error:
            answer.later(self._loop, faults.retry_seconds, error)
            return
        if fate == "ack_lost":
            lost = LogUnavailableError(f"no answer from {tp.topic}/{tp.partition}")
            answer.later(self._loop, faults.retry_seconds, lost)
        else:
            answer.later(self._loop, faults.append_seconds(), offset)

    def _store_late(self, tp: TopicPartition, records: Sequence[Outgoing]) -> None:
        partition = self._broker.partition(tp) if not self._broker.is_away else None
        if partition is None:
            return
        stored, _ = partition.stored_batches.get(self._producer, (None, 0))
        # An idempotent producer's batch that comes after a later one is refused for its sequence number. Whether a
        # later one came is known by the last stored batch; the very first may still be stored.
        if not self._broker.idempotent or stored is None or stored is records:
            self._broker.store(self._producer, tp, records)


@dataclass(frozen=True, slots=True)
class _Answer:
    """To the process that asked, and only while it runs."""

    done: Callable[[BatchResult], None]
    context: Context

    def later(self, loop: asyncio.AbstractEventLoop, seconds: float, result: BatchResult) -> None:
        loop.call_later(seconds, self.done, result, context=self.context)


class _SimulatedReader:
    def __init__(self, broker: SimulatedBroker, line: _Line) -> None:
        self._broker = broker
        self._line = line
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._is_woken = False
        self._waiting: asyncio.Future[bool] | None = None
        """Of the one poll under way; true once it is woken."""
        self._stopped: LogError | None = None
        self._next = 0

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def position(self, tp: TopicPartition) -> int:
        return self._positions[tp]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if tp not in self._positions:
            raise LogError(f"cannot seek in {tp.topic}/{tp.partition}: this reader is not assigned to it")
        self._positions[tp] = offset
        self.wake()

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._line.reach(self._broker, tp).end for tp in tps}

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        self._paused.update(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(tps)
        self.wake()

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Outside a group there is nothing to commit to."""

    async def poll(self, timeout_ms: int) -> list[tuple[TopicPartition, list[Incoming]]]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            self._check()
            self._is_woken = False
            await self._prepare()
            found = self._find()
            if found:
                seconds = self._broker.faults.fetch_seconds()
                if seconds:
                    await asyncio.sleep(seconds)
                    self._check()
                    await self._prepare()
                # What was found before the wait is given, unless a seek or a new assignment came in between.
                found = [(tp, records) for tp, records in found if self._positions.get(tp) == records[0].offset]
                for tp, records in found:
                    self._positions[tp] = records[-1].offset + 1
                if found:
                    return found
                continue
            if not await self._wait(loop, deadline):
                return []

    async def _wait(self, loop: asyncio.AbstractEventLoop, deadline: float) -> bool:
        """Whether there is something to look at. A simulation does this so often that asyncio's event and timeout, which
        would say the same, take a tenth of its time.
        """
        if self._is_woken:
            return True
        waiting = self._waiting = loop.create_future()
        timer = loop.call_at(deadline, _end_wait, waiting)
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting = None

    async def close(self) -> None:
        self.vanish()
        self._stopped = LogError("the reader is closed")

    def vanish(self) -> None:
        self._stopped = LogError("the process is gone")
        self._broker.remove_reader(self)
        self.wake()

    def pause_member(self) -> None:
        pass

    def resume_member(self) -> None:
        pass

    def reads(self, tp: TopicPartition) -> bool:
        return tp in self._positions

    def wake(self) -> None:
        self._is_woken = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(True)

    async def _prepare(self) -> None:
        pass

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _find(self) -> list[tuple[TopicPartition, list[Incoming]]]:
        if self._broker.is_away or self._line.is_cut:
            return []
        found: list[tuple[TopicPartition, list[Incoming]]] = []
        for tp in self._in_turn():
            if not self._broker.has(tp):
                continue  # a topic may come later
            partition = self._broker.partition(tp)
            position = self._positions[tp]
            if not partition.begin <= position <= partition.end:
                raise OffsetOutOfRangeError(
                    f"offset {position} of {tp.topic}/{tp.partition} is not in the log, which has "
                    f"{partition.begin} to {partition.end}"
                )
            start = position - partition.begin
            available = len(partition.records) - start
            if available:
                count = min(available, self._broker.faults.poll_records(available))
                found.append((tp, partition.records[start : start + count]))
        return found

    def _in_turn(self) -> list[TopicPartition]:
        """Another partition first each time, as fetches do; in an order that a replay repeats."""
        tps = sorted(tp for tp in self._positions if tp not in self._paused)
        if not tps:
            return tps
        self._next = (self._next + 1) % len(tps)
        return tps[self._next :] + tps[: self._next]


def _end_wait(waiting: "asyncio.Future[bool]") -> None:
    if not waiting.done():
        waiting.set_result(False)


class _AssignedReader(_SimulatedReader):
    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._positions = {tp: self._positions.get(tp, offset) for tp, offset in offsets.items()}
        self._paused &= self._positions.keys()
        self.wake()


class _GroupReader(_SimulatedReader):
    def __init__(
        self,
        broker: SimulatedBroker,
        line: _Line,
        group: Group,
        member: str,
        rebalance: Rebalance,
        is_static: bool,
    ) -> None:
        super().__init__(broker, line)
        self._group = group
        self._rebalance = rebalance
        self._coming: frozenset[TopicPartition] | None = None
        self.member = member
        self.is_static = is_static
        self.topics: tuple[str, ...] = ()
        self.paused_times = 0
        self.absences = 0
        """Why the group does not hear of it: it stands still, or its line is cut."""
        self._context = copy_context()
        self.joined = asyncio.Event()
        self.count_failed_commit: Callable[[], None] = lambda: None

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        raise LogError("a member of a group is assigned by its group")

    def come(self, coming: frozenset[TopicPartition]) -> None:
        self._coming = coming
        self.joined.set()
        self.wake()

    def fence(self) -> None:
        self._stopped = LogError(f"another member took the place of {self.member}")
        self._broker.remove_reader(self)
        self.wake()

    def commit_soon(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._broker.is_away:
            self.count_failed_commit()
        else:
            self._group.committed.update(offsets)

    async def close(self) -> None:
        await super().close()
        if not self.is_static:
            self._group.leave(self)

    def vanish(self) -> None:
        super().vanish()
        self._group.miss(self)

    def pause_member(self) -> None:
        self.absences += 1
        self.paused_times += 1
        self._group.miss_while_paused(self)

    def resume_member(self) -> None:
        """It goes on with what it believes to have until a heartbeat tells it that it is no member any more."""
        self.absences = max(0, self.absences - 1)  # what it joined meanwhile knows of none
        if self.absences == 0 and self._stopped is None and not self._group.has(self):
            seconds = self._broker.faults.heartbeat_seconds()
            asyncio.get_running_loop().call_later(seconds, self._join_again, context=self._context)

    def _join_again(self) -> None:
        if self.absences == 0 and self._stopped is None and not self._group.has(self):
            self._group.join(self, self.topics)

    async def _prepare(self) -> None:
        while self._coming is not None:
            coming, self._coming = self._coming, None
            lost = frozenset(self._positions.keys() - coming)
            gained = coming - self._positions.keys()
            for tp in lost:
                del self._positions[tp]
            self._paused &= coming
            if lost:
                await self._rebalance.revoked(lost)
            if gained:
                offsets = await self._rebalance.assigned(gained)
                for tp in sorted(gained):
                    self._positions[tp] = offsets[tp] if tp in offsets else self._broker.partition(tp).begin
