"""The projector's loop over a database in memory and a simulated log, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from schemas.ids import ThreadKey
from schemas.topics import THREAD_EFFECTS, THREAD_EVENTS, THREAD_EVENTS_DLQ
from services.chassis.errors import SetupError
from services.chassis.log.port import Incoming, Outgoing
from services.chassis.log_partitions import OtherPartitionsError
from services.chassis.settings import MIB
from services.projector.applying.apply import Applier
from services.projector.generations.errors import OtherLogError
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.settings import ProjectorSettings
from tests.support.memory.relay import MemoryRelayStore
from tests.support.memory.tables import EVENT_TYPE
from tests.support.memory.views import MemoryViews
from tests.support.recorded.histories import History, plain_turn
from tests.support.simulated.log import SimulatedBroker
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.simulated.virtual_time import VirtualClock, run_virtual
from tests.support.stored.views_equal import assert_views_equal
from tests.support.worlds.projector import key_of, random_records

TOPIC = THREAD_EVENTS.name
PARTITIONS = 3
CAUGHT_UP_SECONDS = 60.0


class World:
    def __init__(self, views: MemoryViews | None = None) -> None:
        self.views = views or MemoryViews()
        self.clock = VirtualClock()
        topics = {TOPIC: PARTITIONS, THREAD_EVENTS_DLQ.name: PARTITIONS}
        self.broker = SimulatedBroker(topics, self.clock)
        self.client = self.broker.connect("client")

    async def append_turn(self, number: int) -> None:
        history = plain_turn(History(key_of(number)))
        key = history.key.to_bytes()
        records = [Outgoing(key, made.value, made.headers, made.record.time_ms) for made in history.encoded]
        await self.client.appender.append(TOPIC, self.partition_of(history.key), records)

    async def append_bytes(self, number: int, size: int) -> None:
        """A record that nobody can read."""
        key = key_of(number)
        await self.client.appender.append(TOPIC, self.partition_of(key), [Outgoing(key.to_bytes(), b"x" * size, (), 1)])

    def partition_of(self, key: ThreadKey) -> int:
        return self.client.partition_for(key.to_bytes(), PARTITIONS)

    def records(self) -> Mapping[int, Sequence[Incoming]]:
        return {partition: self.broker.records(TOPIC, partition) for partition in range(PARTITIONS)}

    async def start(self, instance: str, incarnation: str = "1", **changed: Any) -> "Running":
        log = self.broker.connect(f"projector-{instance}")
        settings = ProjectorSettings(instance=instance, **changed)
        metrics = ProjectorMetrics.register(CollectorRegistry())
        projector = await Projector.start(log, self.views, settings, self.clock, metrics, incarnation)
        stopping = asyncio.Event()
        return Running(log, stopping, asyncio.create_task(projector.run(stopping)))

    @asynccontextmanager
    async def projector(self, instance: str = "0", **changed: Any) -> AsyncIterator[None]:
        running = await self.start(instance, **changed)
        try:
            yield
        finally:
            running.stopping.set()
            await running.task

    async def caught_up(self) -> None:
        async with asyncio.timeout(CAUGHT_UP_SECONDS):
            for partition, records in self.records().items():
                while self.views.next_offset(partition) < len(records):  # noqa: ASYNC110 - views may vanish meanwhile
                    await asyncio.sleep(0.1)

    def assert_equal(self) -> None:
        assert_views_equal(self.views, self.records(), self.partition_of)


class Running:
    def __init__(self, log: Any, stopping: asyncio.Event, task: asyncio.Task[None]) -> None:
        self.log = log
        self.stopping = stopping
        self.task = task

    async def crash(self) -> None:
        self.log.crash()
        self.task.cancel()
        await asyncio.wait([self.task])


@in_virtual_time
async def test_what_is_appended_is_shown() -> None:
    world = World()
    async with world.projector():
        for number in range(12):
            await world.append_turn(number)
        await world.caught_up()
        world.assert_equal()


@in_virtual_time
async def test_a_batch_holds_no_more_than_it_may_however_much_one_poll_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Sequence[Incoming]] = []
    submit = Applier.submit

    async def counted(applier: Applier, records: Sequence[Incoming]) -> None:
        batches.append(records)
        await submit(applier, records)

    monkeypatch.setattr(Applier, "submit", counted)
    world = World()
    for number in range(12):
        await world.append_turn(number)
    for number in range(5):
        await world.append_bytes(number, 700_000)
    async with world.projector(projector_batch_records_max=10, batch_bytes_max=MIB):
        await world.caught_up()
        world.assert_equal()
    sizes = [sum(len(incoming.value or b"") for incoming in records) for records in batches]
    assert max(map(len, batches)) == 10
    assert MIB < max(sizes) <= MIB + 700_000 + 10_000, "the record that fills it may be over"


@in_virtual_time
async def test_batches_that_a_crash_of_the_database_took_are_written_again_though_nothing_new_comes() -> None:
    world = World()
    async with world.projector():
        for number in range(3):
            await world.append_turn(number)
            await asyncio.sleep(1)
        await world.caught_up()
        assert world.views.lose_last(2) == 2
        await world.caught_up()
        world.assert_equal()


@in_virtual_time
async def test_dropped_views_are_made_again_though_nothing_new_comes() -> None:
    world = World()
    async with world.projector():
        await world.append_turn(1)
        await world.caught_up()
        world.views.drop()
        await world.caught_up()
        world.assert_equal()


@in_virtual_time
async def test_who_had_no_partitions_at_a_swap_writes_none_of_the_generation_before() -> None:
    """It is kept, and nobody has told the one that stood by."""
    world = World()
    owners = [await world.start(str(number)) for number in range(PARTITIONS)]
    standby = await world.start("standby")
    await asyncio.sleep(1)
    await world.append_turn(1)
    await world.caught_up()
    new = world.views.make("simulated", "building")
    old = world.views.made_live
    assert old is not None
    old.tables.take_from_owners()
    old.status, new.status = "old", "live"
    await world.append_turn(2)
    await world.caught_up()
    world.assert_equal()
    kept = dict(old.tables.positions)
    for owner in owners:
        await owner.crash()
    for number in range(12):
        await world.append_turn(number)
    await world.caught_up()
    world.assert_equal()
    offsets, expected = ([at.next_offset for at in each.values()] for each in (old.tables.positions, kept))
    assert offsets == expected
    standby.stopping.set()
    await standby.task


@in_virtual_time
async def test_a_partition_that_nobody_had_claimed_at_a_swap_is_found_in_the_generation_before() -> None:
    world = World()
    async with world.projector():
        await world.append_turn(1)
        await world.caught_up()
        new = world.views.make("simulated", "building")
        old = world.views.made_live
        assert old is not None
        old.status, new.status = "old", "live"
        await world.caught_up()
        world.assert_equal()


@in_virtual_time
async def test_what_comes_while_the_database_is_away_is_shown_afterwards() -> None:
    world = World()
    async with world.projector():
        await world.append_turn(1)
        await world.caught_up()
        world.views.is_away = True
        await world.append_turn(2)
        await asyncio.sleep(30)
        world.views.is_away = False
        await world.caught_up()
        world.assert_equal()


@in_virtual_time
async def test_a_record_that_the_database_refuses_quarantines_its_thread_alone() -> None:
    world = World(MemoryViews(refuses=lambda event: event[:2] == key_of(1) and event[EVENT_TYPE] == "turn.started"))
    async with world.projector():
        for number in range(3):
            await world.append_turn(number)
        await world.caught_up()
    tables = world.views.tables
    assert tables is not None
    quarantined = {key: row.quarantined for key, row in tables.states() if row.quarantined is not None}
    assert quarantined.keys() == {key_of(1)}
    assert "the database refuses a row of it" in quarantined[key_of(1)]
    world.assert_equal()


@in_virtual_time
async def test_views_of_another_log_are_refused() -> None:
    world = World()
    await world.views.live("another")
    with pytest.raises(OtherLogError):
        await world.start("0")


@in_virtual_time
async def test_partitions_that_the_topic_is_given_are_left_alone_and_nobody_starts_on_them() -> None:
    world = World()
    running, other = await world.start("0"), await world.start("1")
    await world.append_turn(0)
    await world.caught_up()
    world.broker.give_partitions(TOPIC, PARTITIONS + 2)
    await other.crash()  # so that its group agrees anew
    await world.client.appender.append(TOPIC, PARTITIONS, [Outgoing(b"acme/astray", b"x", (), 1)])
    for number in range(6):
        await world.append_turn(number)
    await world.caught_up()
    await asyncio.sleep(CAUGHT_UP_SECONDS)
    world.assert_equal()
    assert await running.log.partition_count(TOPIC) == PARTITIONS + 2
    assert world.views.next_offset(PARTITIONS) == 0
    running.stopping.set()
    await running.task
    with pytest.raises(OtherPartitionsError, match=r"5 partitions, and had 3 .*--new-log"):
        await world.start("0", "2")
    world.views.drop()
    with pytest.raises(OtherPartitionsError):
        await world.start("0", "2")


SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_views_are_what_the_log_comes_to_whatever_happened(seed: int) -> None:
    run_virtual(_play(random.Random(seed), seed))


async def _play(rng: random.Random, seed: int) -> None:
    """Two projectors that crash, rows lost, dropped and refused, a database that is slow and away."""

    async def pause() -> None:
        await asyncio.sleep(rng.choice([0, 0.001, 0.02, 0.3]))

    world = World(MemoryViews(pause, refuses=_refusing(rng.random() < 0.3)))
    views = world.views
    running = {name: await world.start(name) for name in ("0", "1")}
    records = random_records(seed, threads=6, moves=25)
    for number, record in enumerate(records):
        key = record.key or b""
        partition = world.client.partition_for(key, PARTITIONS)
        await world.client.appender.append(TOPIC, partition, [Outgoing(key, record.value, record.headers)])
        await asyncio.sleep(rng.choice([0, 0, 0.01, 0.2]))
        match rng.randrange(160):
            case 0:
                name = rng.choice(["0", "1"])
                await running[name].crash()
                running[name] = await world.start(name, str(number))
            case 1:
                views.lose_last(rng.randrange(5))
            case 2:
                views.is_away = True
                asyncio.get_running_loop().call_later(rng.choice([0.05, 1, 8]), setattr, views, "is_away", False)
            case 3 if rng.random() < 0.3:
                views.drop()
    await asyncio.sleep(10)
    await world.caught_up()
    for one in running.values():
        one.stopping.set()
        await one.task
    world.assert_equal()


def _refusing(refuses: bool) -> Any:
    return (lambda event: event[EVENT_TYPE] == "turn.recovered") if refuses else None


@in_virtual_time
@pytest.mark.parametrize("partitions", [PARTITIONS - 1, PARTITIONS])
async def test_effects_need_as_many_partitions_as_events(partitions: int) -> None:
    world = World()
    world.broker.add_topic(THREAD_EFFECTS.name, partitions)
    starting = Projector.start(
        world.broker.connect("projector"),
        world.views,
        ProjectorSettings(),
        world.clock,
        ProjectorMetrics.register(CollectorRegistry()),
        "1",
        MemoryRelayStore(world.views),
    )
    if partitions == PARTITIONS:
        await starting
    else:
        with pytest.raises(SetupError, match=r"thread-effects has 2 partitions.* Give thread-effects 3"):
            await starting
