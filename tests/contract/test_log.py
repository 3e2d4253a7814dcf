"""What every implementation of the log promises. A second one is a fake worth trusting only because it passes this."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

import pytest
import pytest_asyncio

from schemas.topics import TOPIC_RECORD_BYTES_MAX
from services.chassis.clock import SystemClock
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import TopicSpec
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.port import Incoming, Log, LogError, OffsetOutOfRangeError, Outgoing, Reader, TopicPartition
from services.chassis.settings import Settings
from tests.support.simulated.log import SimulatedBroker

READ_SECONDS = 180.0
AT_ONCE_SECONDS = 0.4
"""Less than a fetch waits at the broker."""
MIB = 1_048_576


class World(Protocol):
    tells_out_of_range: bool

    async def topic(self, partitions: int = 1) -> str: ...

    async def log(self) -> Log:
        """A client of its own, closed after the test."""


class SimulatedWorld:
    tells_out_of_range = True

    def __init__(self, closing: AsyncExitStack) -> None:
        self._closing = closing
        self._broker = SimulatedBroker({}, SystemClock())

    async def topic(self, partitions: int = 1) -> str:
        name = f"contract-{uuid.uuid4().hex}"
        self._broker.add_topic(name, partitions)
        return name

    async def log(self) -> Log:
        log = self._broker.connect()
        self._closing.push_async_callback(log.close)
        return log


class KafkaWorld:
    def __init__(self, closing: AsyncExitStack, settings: Settings) -> None:
        self._closing = closing
        self._settings = settings
        self.tells_out_of_range = settings.kafka_idempotence

    async def topic(self, partitions: int = 1) -> str:
        name = f"contract-{uuid.uuid4().hex}"
        async with kafka_topics(self._settings) as topics:
            configs = {"max.message.bytes": str(TOPIC_RECORD_BYTES_MAX)}
            await topics.create([TopicSpec(name, partitions, 1, configs)])
        return name

    async def log(self) -> Log:
        log = await KafkaLog.open(self._settings, "contract")
        self._closing.push_async_callback(log.close)
        return log


class QuickSettings(Settings):
    @property
    def kafka_heartbeat_interval_ms(self) -> int:
        """A rebalance waits for the heartbeats of all members, so with short ones it takes a moment."""
        return 200


@pytest_asyncio.fixture(scope="module")
async def settings(kafka_bootstrap: str) -> Settings:
    settings = QuickSettings(kafka_bootstrap_servers=kafka_bootstrap)
    try:
        await (await KafkaLog.open(settings, "contract")).close()
    except LogError:  # the embedded broker has no idempotent producers, and does not wake a fetch that waits
        return settings.model_copy(update={"kafka_idempotence": False, "kafka_fetch_max_wait_ms": 20})
    return settings


@pytest_asyncio.fixture
async def simulated_world() -> AsyncIterator[World]:
    async with AsyncExitStack() as closing:
        yield SimulatedWorld(closing)


@pytest_asyncio.fixture
async def kafka_world(settings: Settings) -> AsyncIterator[World]:
    async with AsyncExitStack() as closing:
        yield KafkaWorld(closing, settings)


@pytest.fixture(params=["simulated_world", "kafka_world"], ids=["simulated", "kafka"])
def world(request: pytest.FixtureRequest) -> World:
    world: World = request.getfixturevalue(request.param)
    return world


@dataclass
class Rebalances:
    """Starts new partitions where `starts` says, else at their beginning, and notes what it is told."""

    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    told: list[tuple[str, frozenset[TopicPartition]]] = field(default_factory=list)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("revoked", partitions))

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.told.append(("assigned", partitions))
        return {tp: self.starts[tp] for tp in partitions if tp in self.starts}


def record(value: bytes, key: bytes = b"t/a") -> Outgoing:
    return Outgoing(key, value)


async def read(reader: Reader, count: int) -> list[Incoming]:
    records: list[Incoming] = []
    async with asyncio.timeout(READ_SECONDS):
        while len(records) < count:
            for _, polled in await reader.poll(1_000):
                records.extend(polled)
    return records


async def until(reached: Callable[[], bool], *polling: Reader) -> None:
    """Poll all readers until the condition holds."""
    async with asyncio.timeout(READ_SECONDS):
        while not reached():
            await asyncio.gather(*[reader.poll(50) for reader in polling])


async def timed(awaited: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await awaited
    return loop.time() - began


async def test_records_keep_their_order_and_appends_tell_their_offsets(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    appends = [log.appender.append(topic, 0, [record(b"%d" % n), record(b"%d'" % n)]) for n in range(200)]
    offsets = [await append for append in appends]
    assert offsets == [(2 * n, 2 * n + 1) for n in range(200)]
    reader = await log.reader({TopicPartition(topic, 0): 0})
    values = [got.value for got in await read(reader, 400)]
    assert values == [value for n in range(200) for value in (b"%d" % n, b"%d'" % n)]


async def test_what_one_call_appends_stays_together(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    piece = b"x" * 100_000
    appends = [log.appender.append(topic, 0, [record(piece)] * (1 + n % 5)) for n in range(12)]
    offsets = [await append for append in appends]
    assert [len(each) for each in offsets] == [1 + n % 5 for n in range(12)]
    assert [offset for each in offsets for offset in each] == list(range(sum(map(len, offsets))))


async def test_an_append_larger_than_a_batch_is_stored_in_order(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    before = log.appender.append(topic, 0, [record(b"before")])
    large = log.appender.append(topic, 0, [record(b"%02d" % n + b"x" * 300_000) for n in range(10)])
    after = log.appender.append(topic, 0, [record(b"after")])
    assert (await before, await large, await after) == ((0,), tuple(range(1, 11)), (11,))
    reader = await log.reader({TopicPartition(topic, 0): 0})
    starts = [(got.value or b"")[:2] for got in await read(reader, 12)]
    assert starts == [b"be", *[b"%02d" % n for n in range(10)], b"af"]


async def test_a_record_comes_back_as_it_was_appended(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    sent = [
        Outgoing(b"t/a", b"value", (("ce_type", b"x"), ("ce_time", "ü".encode())), 1_700_000_000_123),
        Outgoing(b"t/a", None, (), 1_700_000_000_124),
        Outgoing(b"t/a", b"", (("empty", b""),), 1_700_000_000_125),
    ]
    await log.appender.append(topic, 0, sent)
    reader = await log.reader({TopicPartition(topic, 0): 0})
    got = await read(reader, 3)
    assert [(each.key, each.value, each.headers, each.timestamp_ms) for each in got] == [tuple(each) for each in sent]
    assert [(each.topic, each.partition, each.offset) for each in got] == [(topic, 0, n) for n in range(3)]


async def test_a_large_record_passes_and_one_too_large_is_refused(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    assert await log.appender.append(topic, 0, [record(b"x" * 1_500_000)]) == (0,)
    with pytest.raises(LogError) as refused:
        await log.appender.append(topic, 0, [record(b"small"), record(b"x" * (2 * MIB))])
    assert not refused.value.retriable
    assert await log.appender.append(topic, 0, [record(b"next")]) == (1,)
    reader = await log.reader({TopicPartition(topic, 0): 0})
    assert [len(got.value or b"") for got in await read(reader, 2)] == [1_500_000, 4]


async def test_lossy_appends_arrive_and_flush_waits_for_them(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    log.appender.append_lossy(topic, 0, [record(b"delta")])
    await log.appender.flush()
    assert await log.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 1}


async def test_offsets_of_begin_and_end(world: World) -> None:
    topic = await world.topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    log = await world.log()
    await log.appender.append(topic, 1, [record(b"a"), record(b"b")])
    assert await log.begin_offsets([first, second]) == {first: 0, second: 0}
    assert await log.end_offsets([first, second]) == {first: 0, second: 2}
    assert await log.partition_count(topic) == 2
    assert await log.cluster_id() == await log.cluster_id() != ""


async def test_a_reader_waits_for_the_next_record(world: World) -> None:
    topic = await world.topic()
    tp = TopicPartition(topic, 0)
    log = await world.log()
    await log.appender.append(topic, 0, [record(b"old")])
    reader = await log.reader({tp: 1})
    assert await reader.poll(100) == []
    polling = asyncio.ensure_future(read(reader, 1))
    await asyncio.sleep(0.05)
    await log.appender.append(topic, 0, [record(b"new")])
    assert [got.value for got in await polling] == [b"new"]
    assert reader.position(tp) == 2


async def test_seek(world: World) -> None:
    topic = await world.topic()
    tp = TopicPartition(topic, 0)
    log = await world.log()
    await log.appender.append(topic, 0, [record(b"%d" % n) for n in range(5)])
    reader = await log.reader({tp: 3})
    assert [got.offset for got in await read(reader, 2)] == [3, 4]
    await reader.poll(100)
    reader.seek(tp, 1)
    assert reader.position(tp) == 1
    assert [got.offset for got in await read(reader, 4)] == [1, 2, 3, 4]
    assert await reader.end_offsets([tp]) == {tp: 5}
    with pytest.raises(LogError):
        reader.seek(TopicPartition(topic, 7), 0)


async def test_a_position_that_is_not_in_the_log(world: World) -> None:
    if not world.tells_out_of_range:
        pytest.skip("the embedded broker waits for the record instead")
    topic = await world.topic()
    tp = TopicPartition(topic, 0)
    log = await world.log()
    await log.appender.append(topic, 0, [record(b"only")])
    reader = await log.reader({tp: 1_000})
    with pytest.raises(OffsetOutOfRangeError, match="offset 1000"):
        await read(reader, 1)
    reader.seek(tp, 0)
    assert [got.value for got in await read(reader, 1)] == [b"only"]


async def test_pause_and_resume(world: World) -> None:
    topic = await world.topic(2)
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    log = await world.log()
    reader = await log.reader({paused: 0, other: 0})
    reader.pause([paused])
    await log.appender.append(topic, 0, [record(b"a")])
    await log.appender.append(topic, 1, [record(b"b")])
    assert [got.value for got in await read(reader, 1)] == [b"b"]
    assert await reader.poll(200) == []
    reader.resume([paused])
    assert await timed(read(reader, 1)) < AT_ONCE_SECONDS


async def test_a_reader_changes_what_it_reads_at_once_and_keeps_positions(world: World) -> None:
    topic = await world.topic(3)
    first, second, third = (TopicPartition(topic, n) for n in range(3))
    log = await world.log()
    for n in range(3):
        await log.appender.append(topic, n, [record(b"a"), record(b"b")])
    reader = await log.reader()
    assert reader.assignment() == frozenset()
    assert await reader.poll(50) == []
    reader.assign({first: 1})
    assert [got.value for got in await read(reader, 1)] == [b"b"]
    await reader.poll(100)  # the next fetch waits at the broker
    reader.assign({first: 0, second: 0})
    assert await timed(read(reader, 2)) < AT_ONCE_SECONDS
    assert reader.assignment() == {first, second}
    await reader.poll(100)
    reader.assign({third: 1})
    assert await timed(read(reader, 1)) < AT_ONCE_SECONDS
    await log.appender.append(topic, 0, [record(b"not read any more")])
    assert await reader.poll(200) == []
    reader.assign({})
    assert await reader.poll(50) == []
    reader.assign({first: 2})
    assert [got.value for got in await read(reader, 1)] == [b"not read any more"]


async def test_an_assignment_wakes_a_poll(world: World) -> None:
    topic = await world.topic()
    log = await world.log()
    await log.appender.append(topic, 0, [record(b"a")])
    reader = await log.reader()
    polling = asyncio.ensure_future(reader.poll(int(READ_SECONDS * 1000)))
    await asyncio.sleep(0.05)
    reader.assign({TopicPartition(topic, 0): 0})
    assert [records[0].value for _, records in await polling] == [b"a"]


async def test_a_group_starts_where_it_is_told(world: World) -> None:
    topic = await world.topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    log = await world.log()
    for n in range(2):
        await log.appender.append(topic, n, [record(b"%d" % offset) for offset in range(4)])
    rebalances = Rebalances(starts={first: 3})
    member = await log.group_reader([topic], topic, rebalances)
    got = await read(member, 5)
    assert rebalances.told == [("assigned", frozenset({first, second}))]
    assert sorted((each.partition, each.offset) for each in got) == [(0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert member.assignment() == {first, second}
    with pytest.raises(LogError):
        member.assign({first: 0})
    member.commit_soon({first: 4, second: 4})


async def test_members_share_partitions_and_take_over(world: World) -> None:
    topic = await world.topic(4)
    tps = [TopicPartition(topic, n) for n in range(4)]
    one, two = await world.log(), await world.log()
    for n in range(4):
        await one.appender.append(topic, n, [record(b"old")])
    told_first, told_second = Rebalances(), Rebalances()
    first = await one.group_reader([topic], topic, told_first)
    assert len(await read(first, 4)) == 4
    joining = asyncio.ensure_future(two.group_reader([topic], topic, told_second))
    await until(joining.done, first)
    second = await joining
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    assert first.assignment() | second.assignment() == set(tps)
    # The first was told of what it lost, never of what it kept, and goes on where it was.
    assert told_first.told == [("assigned", frozenset(tps)), ("revoked", frozenset(tps) - first.assignment())]
    assert all(first.position(tp) == 1 for tp in first.assignment())
    for n in range(4):
        await one.appender.append(topic, n, [record(b"new")])
    assert {(got.partition, got.value) for got in await read(first, 2)} == {
        (tp.partition, b"new") for tp in first.assignment()
    }
    await until(lambda: all(second.position(tp) == 2 for tp in second.assignment()), second)
    kept, lost = first.assignment(), second.assignment()
    await second.close()
    again: list[Incoming] = []
    async with asyncio.timeout(READ_SECONDS):
        while len(again) < 4:
            again.extend(got for _, records in await first.poll(100) for got in records)
    assert first.assignment() == set(tps)
    assert {got.partition for got in again} == {tp.partition for tp in lost}  # from the beginning, as `assigned` said
    assert told_first.told[2:] == [("assigned", lost)]
    assert all(first.position(tp) == 2 for tp in kept)
    with pytest.raises(LogError):
        await second.poll(10)


async def test_a_static_member_comes_back_unnoticed(world: World) -> None:
    topic = await world.topic(4)
    one, two, again = await world.log(), await world.log(), await world.log()
    told_first, told_second, told_again = Rebalances(), Rebalances(), Rebalances()
    first = await one.group_reader([topic], topic, told_first, "member-1")
    joining = asyncio.ensure_future(two.group_reader([topic], topic, told_second, "member-2"))
    await until(joining.done, first)
    second = await joining
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    had = second.assignment()
    told = list(told_first.told)
    await second.close()
    back = await again.group_reader([topic], topic, told_again, "member-2")
    await until(lambda: len(back.assignment()) == 2, first, back)
    assert back.assignment() == had
    for _ in range(10):
        await first.poll(50)
    assert told_first.told == told


async def test_what_a_rebalance_callback_raises_comes_out_of_poll(world: World) -> None:
    class Broken(Rebalances):
        async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
            raise RuntimeError("no state")

    topic = await world.topic()
    log = await world.log()
    member = await log.group_reader([topic], topic, Broken())
    with pytest.raises(RuntimeError, match="no state"):
        await until(lambda: False, member)


async def test_keys_go_where_kafka_sends_them(world: World) -> None:
    """The hashes are those of Kafka's own test of its murmur2."""
    log = await world.log()
    for key, murmur2 in (
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ):
        for partitions in (1, 12, 64):
            assert log.partition_for(key, partitions) == (murmur2 & 0x7FFF_FFFF) % partitions
