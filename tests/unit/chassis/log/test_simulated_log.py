"""What the simulated log does to its users beyond what Kafka promises; the promises are in tests/contract."""

import asyncio
from collections.abc import Mapping

import pytest

from services.chassis.log.port import (
    LogError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    Outgoing,
    Reader,
    TopicPartition,
)
from tests.support.simulated.log import Fate, Faults, SimulatedBroker
from tests.support.simulated.virtual_time import EPOCH_MS, Host, StuckError, VirtualClock, run_virtual

TP = TopicPartition("topic", 0)


class Script(Faults):
    """Fates by plan, then all is well."""

    def __init__(self, *fates: Fate) -> None:
        super().__init__()
        self._fates = list(fates)

    def fate(self, tp, records) -> Fate:
        return self._fates.pop(0) if self._fates else "stored"


class Follower:
    def __init__(self) -> None:
        self.has: set[TopicPartition] = set()

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.has -= partitions

    async def assigned(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.has |= partitions
        return {}


def values(broker: SimulatedBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("topic", 0)]


async def append_three(faults: Faults, *, idempotent: bool) -> SimulatedBroker:
    broker = SimulatedBroker({"topic": 1}, VirtualClock(), faults=faults, idempotent=idempotent)
    log = broker.connect()
    for value in (b"a", b"b", b"c"):
        await log.appender.append("topic", 0, [Outgoing(b"k", value)])
    await asyncio.sleep(10)
    return broker


def test_a_lost_acknowledgement_stores_twice_without_idempotence_and_once_with_it() -> None:
    async def main() -> None:
        assert values(await append_three(Script("ack_lost"), idempotent=False)) == [b"a", b"a", b"b", b"c"]
        assert values(await append_three(Script("ack_lost"), idempotent=True)) == [b"a", b"b", b"c"]

    run_virtual(main())


def test_a_late_request_comes_behind_later_ones() -> None:
    async def main() -> None:
        assert values(await append_three(Script("late", "stored"), idempotent=True)) == [b"a", b"b", b"c"]
        duplicated = values(await append_three(Script("late", "stored"), idempotent=False))
        assert sorted(filter(None, duplicated)) == [b"a", b"a", b"b", b"c"]

    run_virtual(main())


def test_a_lost_request_is_sent_again() -> None:
    async def main() -> None:
        assert values(await append_three(Script("request_lost", "request_lost"), idempotent=False)) == [
            b"a",
            b"b",
            b"c",
        ]

    run_virtual(main())


def test_the_same_seed_gives_the_same_history() -> None:
    async def history(seed: int) -> list[tuple[bytes | None, int]]:
        faults = Faults(seed, ack_lost=0.2, request_lost=0.1, late=0.1, append_seconds_max=0.3, fetch_seconds_max=0.2)
        broker = SimulatedBroker({"topic": 1}, VirtualClock(), faults=faults, idempotent=False)

        async def write(name: bytes) -> None:
            log = broker.connect()
            for n in range(20):
                await log.appender.append("topic", 0, [Outgoing(b"k", name + b"%d" % n)])

        await asyncio.gather(write(b"a"), write(b"b"))
        return [(record.value, record.timestamp_ms) for record in broker.records("topic", 0)]

    first = run_virtual(history(1))
    assert first == run_virtual(history(1))
    assert first != run_virtual(history(2))


def test_records_come_in_small_pieces() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 1}, VirtualClock(), faults=Faults(1, poll_records_max=3))
        log = broker.connect()
        await log.appender.append("topic", 0, [Outgoing(b"k", b"v")] * 20)
        reader = await log.reader({TP: 0})
        sizes = []
        while reader.position(TP) < 20:
            [(_, records)] = await reader.poll(100)
            sizes.append(len(records))
        assert sum(sizes) == 20
        assert set(sizes) <= {1, 2, 3}

    run_virtual(main())


async def until(reader: Reader, follower: Follower, count: int) -> None:
    async with asyncio.timeout(30):
        while len(follower.has) < count:
            await reader.poll(100)


def test_a_crashed_member_is_missed_after_its_session_and_lives_on_as_a_zombie() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 4}, VirtualClock())
        first, second = Follower(), Follower()
        one, two = broker.connect(), broker.connect()
        reader = await one.group_reader(["topic"], "group", first)
        doomed = await two.group_reader(["topic"], "group", second)
        await until(doomed, second, 2)
        await until(reader, first, 2)
        stored_late = two.appender.append("topic", 0, [Outgoing(b"k", b"sent before the crash")])
        await asyncio.sleep(0)
        two.crash()
        began = asyncio.get_running_loop().time()
        with pytest.raises(LogError):
            await doomed.poll(10)
        with pytest.raises(LogError):
            await stored_late
        await until(reader, first, 4)
        assert 6 <= asyncio.get_running_loop().time() - began < 7
        assert len(second.has) == 2  # nobody told it
        await asyncio.sleep(1)
        assert values(broker) == [b"sent before the crash"]

    run_virtual(main())


def test_a_member_with_the_name_of_a_living_one_takes_its_place() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 2}, VirtualClock())
        old = await broker.connect().group_reader(["topic"], "group", Follower(), "name")
        await old.poll(10)
        follower = Follower()
        new = await broker.connect().group_reader(["topic"], "group", follower, "name")
        await new.poll(10)
        assert len(follower.has) == 2
        with pytest.raises(LogError, match="took the place"):
            await old.poll(10)

    run_virtual(main())


def test_a_broker_that_is_away_for_a_while() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 1}, VirtualClock())
        log = broker.connect()
        reader = await log.reader({TP: 0})
        broker.is_away = True
        append = log.appender.append("topic", 0, [Outgoing(b"k", b"v")])
        assert await reader.poll(5_000) == []
        with pytest.raises(LogUnavailableError):
            await log.end_offsets([TP])
        broker.come_back()
        assert await append == (0,)
        assert len(await reader.poll(1_000)) == 1
        broker.is_away = True
        with pytest.raises(LogUnavailableError):
            await log.appender.append("topic", 0, [Outgoing(b"k", b"v")])

    run_virtual(main())


def test_retention_moves_the_beginning() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 1}, VirtualClock())
        log = broker.connect()
        await log.appender.append("topic", 0, [Outgoing(b"k", b"%d" % n) for n in range(5)])
        broker.delete_before(TP, 3)
        assert await log.begin_offsets([TP]) == {TP: 3}
        reader = await log.reader({TP: 0})
        with pytest.raises(OffsetOutOfRangeError):
            await reader.poll(10)
        reader.seek(TP, 3)
        [(_, records)] = await reader.poll(10)
        assert [(record.offset, record.value) for record in records] == [(3, b"3"), (4, b"4")]

    run_virtual(main())


def test_commits_are_remembered_for_the_group() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 1}, VirtualClock())
        log = broker.connect()
        reader = await log.group_reader(["topic"], "group", Follower())
        reader.commit_soon({TP: 7})
        broker.is_away = True
        reader.commit_soon({TP: 8})
        assert broker.committed("group") == {TP: 7}
        assert log.counts.commits_failed == 1

    run_virtual(main())


def test_virtual_time_jumps_and_says_when_nothing_can_happen() -> None:
    async def sleep() -> tuple[float, int]:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time(), VirtualClock().now_ms()

    async def stuck() -> None:
        await asyncio.Event().wait()

    assert run_virtual(sleep()) == (86_400, EPOCH_MS + 86_400_000)
    with pytest.raises(StuckError):
        run_virtual(stuck())


def test_what_belongs_to_a_frozen_host_waits_and_keeps_its_order() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        host, told = Host(), []
        for seconds in (2, 1):
            loop.call_later(seconds, told.append, seconds, context=host.context())
        loop.call_later(1, told.append, "other")
        host.is_frozen = True
        await asyncio.sleep(5)
        assert told == ["other"]
        host.thaw()
        await asyncio.sleep(0)
        assert told == ["other", 1, 2]

    run_virtual(main())


def test_a_host_is_told_of_its_step() -> None:
    async def main() -> None:
        host, steps = Host(), []
        host.stop_at, host.on_step = 3, lambda: steps.append(host.steps)

        async def count() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        await asyncio.get_running_loop().create_task(count(), context=host.context())
        assert steps == [3]

    run_virtual(main())


def test_a_member_that_stood_still_comes_back_after_its_partitions_have_moved() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 2}, VirtualClock())
        first, second = broker.connect(), broker.connect()
        follower, other = Follower(), Follower()
        reader = await first.group_reader(["topic"], "group", follower, "a")
        await until(reader, follower, 2)
        first.pause()
        taking_over = await second.group_reader(["topic"], "group", other, "b")
        await until(taking_over, other, 1)
        await asyncio.sleep(broker.session_seconds + 1)
        await until(taking_over, other, 2)
        assert follower.has == other.has, "it does not know yet"
        first.resume()
        await reader.poll(1_000)
        await taking_over.poll(1_000)
        assert len(follower.has) == len(other.has) == 1
        assert follower.has != other.has

    run_virtual(main())


def test_a_process_that_lost_the_broker_stores_and_reads_nothing() -> None:
    async def main() -> None:
        broker = SimulatedBroker({"topic": 1}, VirtualClock())
        log, other = broker.connect(), broker.connect()
        reader = await log.reader({TP: 0})
        log.cut()
        appended = log.appender.append("topic", 0, [Outgoing(b"k", b"later")])
        await other.appender.append("topic", 0, [Outgoing(b"k", b"first")])
        assert await reader.poll(5_000) == []
        with pytest.raises(LogUnavailableError):
            await log.end_offsets([TP])
        log.mend()
        await appended
        assert values(broker) == [b"first", b"later"]
        assert await reader.poll(0) != []

    run_virtual(main())
