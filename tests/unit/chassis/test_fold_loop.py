"""The frame of following services, on a simulated log, with rows at positions of the test's choosing."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from schemas.codec import Record
from schemas.events import Event, ThreadDescribed
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import ThreadState
from schemas.thread import Verdict
from schemas.topics import THREAD_EVENTS
from services.chassis.fold_loop import FoldLoop, FoldLoopSettings, Held, Partition
from services.chassis.log import Outgoing, TopicPartition
from tests.support.folded_states import FoldedStates
from tests.support.histories import RUNTIME, USER, History, created, submitted, turn_started
from tests.support.simulated_log import SimulatedBroker
from tests.support.virtual_tests import in_virtual_time
from tests.support.virtual_time import VirtualClock

TOPIC = THREAD_EVENTS.name
SETTINGS = FoldLoopSettings(assign_wait_seconds=5, stale_wait_seconds=30, evict_every_seconds=1e9)
EVICTING = replace(SETTINGS, evict_every_seconds=1)


@dataclass(eq=False)
class Recorder:
    """A follower that notes what it is told. Its work is the offsets that it saw of a thread."""

    batches: list[tuple[int, list[str]]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    fails_on: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)

    def new_work(self) -> list[int]:
        return []

    def on_record(self, held: Held[list[int]], before: ThreadState, record: Record, verdict: Verdict) -> None:
        if held.key.thread in self.fails_on:
            raise RuntimeError("a bug")
        assert record.offset > before.offset
        held.work.append(record.offset)

    def on_batch(self, partition: Partition[list[int]], touched: Iterable[Held[list[int]]]) -> None:
        assert partition.ready
        self.batches.append((partition.number, [held.key.thread for held in touched]))

    def on_ready(self, partition: Partition[list[int]]) -> None:
        self.ready.append(partition.number)

    def on_lost(self, partition: Partition[list[int]]) -> None:
        self.lost.append(partition.number)

    def on_quarantined(self, partition: Partition[list[int]], held: Held[list[int]], error: Exception) -> None:
        self.quarantined.append(held.key.thread)

    def may_evict(self, held: Held[list[int]]) -> bool:
        return held.key.thread not in self.kept


class World:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.broker = SimulatedBroker({TOPIC: partitions}, VirtualClock())
        self.store = FoldedStates(self.broker)
        self.log = self.broker.connect()
        self.histories: dict[str, History] = {}
        self.follower = Recorder()

    def history(self, thread: str) -> History:
        key = ThreadKey(TenantId("acme"), ThreadId(thread))
        return self.histories.setdefault(thread, History(key=key))

    async def append(self, thread: str, *events: Event, partition: int = 0) -> None:
        """To the partition that the test says, whatever the key."""
        history = self.history(thread)
        for event in events:
            actor = RUNTIME if event.kind.startswith("turn.") else USER
            made = history.apply(event, actor)
            record = Outgoing(history.key.to_bytes(), made.value, made.headers, made.record.time_ms)
            await self.log.appender.append(TOPIC, partition, [record])

    async def idle(self, thread: str, partition: int = 0) -> None:
        await self.append(thread, created(), partition=partition)

    async def say(self, thread: str, text: str = "x", partition: int = 0) -> None:
        """A record that leaves the thread idle."""
        await self.append(thread, ThreadDescribed(title=text), partition=partition)

    async def activate(self, thread: str, partition: int = 0) -> None:
        name = f"i{self.history(thread).state.seq}"
        await self.append(thread, submitted(name), partition=partition)

    @asynccontextmanager
    async def following(
        self, settings: FoldLoopSettings = SETTINGS, *, keys: bool = False
    ) -> AsyncIterator[FoldLoop[list[int]]]:
        store = self.store
        loop: FoldLoop[list[int]] = FoldLoop(self.log, store, self.follower, TOPIC, settings, store if keys else None)
        self.reader = await self.log.group_reader([TOPIC], "group", loop)
        self.stopping = asyncio.Event()
        tasks = [
            asyncio.create_task(loop.run(self.reader, self.stopping)),
            asyncio.create_task(loop.run_loader()),
            asyncio.create_task(loop.run_evictions()),
        ]
        if keys:
            tasks.append(asyncio.create_task(loop.run_keys()))
        await asyncio.sleep(0.1)
        try:
            yield loop
            for task in tasks:
                assert not task.done() or task.exception() is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def held(self, loop: FoldLoop[list[int]], thread: str, partition: int = 0) -> Held[list[int]] | None:
        return loop.partitions[partition].threads.get(self.history(thread).key)

    def agrees(self, loop: FoldLoop[list[int]], thread: str, partition: int = 0) -> bool:
        """Whether the loop has folded all that the thread's log has."""
        held, truth = self.held(loop, thread, partition), self.history(thread).state
        if held is None:
            return False
        return (held.state.seq, held.state.chain, held.state.title) == (truth.seq, truth.chain, truth.title)


# From the beginning


@in_virtual_time
async def test_without_rows_everything_is_read_and_acted_for_once_it_is_read() -> None:
    world = World()
    for thread in ("a", "b"):
        await world.idle(thread)
        await world.say(thread)
    async with world.following() as loop:
        assert world.agrees(loop, "a") and world.agrees(loop, "b")
        assert world.follower.ready == [0]
        assert world.follower.batches == [], "what was there before is acted for by on_ready"
        await world.say("a")
        await asyncio.sleep(0.1)
        assert world.follower.batches == [(0, ["a"])]
        assert world.store.loads == 0, "a partition that was read whole needs no rows"
        held = world.held(loop, "a")
        assert held is not None and held.from_start and held.work == [0, 1, 4]


@in_virtual_time
async def test_an_empty_partition_is_ready_at_once() -> None:
    world = World()
    async with world.following() as loop:
        assert loop.not_ready() is None
        assert world.follower.ready == [0]


@in_virtual_time
async def test_records_that_are_in_no_thread_are_passed_over() -> None:
    world = World()
    await world.log.appender.append(TOPIC, 0, [Outgoing(b"\xff", b"{}"), Outgoing(b"acme/a", None)])
    await world.idle("a")
    async with world.following() as loop:
        assert world.agrees(loop, "a")
        assert loop.records_folded == 1


# From rows


@in_virtual_time
async def test_active_threads_come_from_their_rows_and_reading_begins_at_the_stored_position() -> None:
    world = World()
    await world.idle("idle")
    await world.idle("active")
    await world.activate("active")
    world.store.advance()
    await world.say("active")
    async with world.following() as loop:
        held = world.held(loop, "active")
        assert held is not None and world.agrees(loop, "active")
        assert (held.work, held.from_start, held.loaded_seq) == ([3], False, 2)
        assert world.held(loop, "idle") is None
        assert world.follower.batches == []


@in_virtual_time
async def test_an_idle_thread_is_loaded_when_a_record_for_it_arrives() -> None:
    world = World()
    await world.idle("a")
    await world.say("a", "one")
    world.store.advance()
    async with world.following() as loop:
        await world.say("a", "two")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "a")
        held = world.held(loop, "a")
        assert held is not None and (held.from_start, held.loaded_seq, held.work) == (False, 2, [2])
        assert world.follower.batches == [(0, ["a"])]


@in_virtual_time
async def test_a_thread_without_a_row_has_no_earlier_record() -> None:
    world = World()
    await world.idle("old")
    world.store.advance()
    async with world.following() as loop:
        await world.idle("new")
        await asyncio.sleep(0.1)
        held = world.held(loop, "new")
        assert held is not None and held.from_start and world.agrees(loop, "new")


@in_virtual_time
async def test_the_keys_of_the_partition_spare_new_threads_the_question() -> None:
    world = World()
    await world.idle("old")
    world.store.advance()
    async with world.following(keys=True) as loop:
        await world.idle("new")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "new")
        assert world.store.loads == 0
        await world.say("old")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "old")
        assert world.store.loads == 1


@in_virtual_time
async def test_a_row_that_is_newer_than_the_reader_does_no_harm() -> None:
    """The records that are in it already are skipped when they come."""
    world = World()
    await world.idle("a")
    world.store.advance()
    loading = asyncio.Event()

    async def slow() -> None:
        if loading.is_set():
            await asyncio.sleep(1)

    world.store._pause = slow
    async with world.following() as loop:
        loading.set()
        await world.say("a", "one")
        await asyncio.sleep(0.1)
        await world.say("a", "two")
        world.store.advance()
        await asyncio.sleep(2)
        await world.say("a", "three")
        await asyncio.sleep(0.1)
        held = world.held(loop, "a")
        assert held is not None and (held.loaded_seq, held.work) == (3, [3])
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_the_loop_does_not_wait_for_the_database() -> None:
    world = World()
    await world.idle("idle")
    await world.idle("active")
    await world.activate("active")
    world.store.advance()
    async with world.following() as loop:

        async def slow() -> None:
            await asyncio.sleep(5)

        world.store._pause = slow
        await world.say("idle")
        await world.say("active")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "active") and not world.agrees(loop, "idle")
        await world.say("idle")
        await asyncio.sleep(6)
        assert world.agrees(loop, "idle")


@in_virtual_time
async def test_more_threads_than_one_load_takes_are_loaded_without_a_pause() -> None:
    world = World()
    threads = [f"t{number}" for number in range(25)]
    for thread in threads:
        await world.idle(thread)
    world.store.advance()
    async with world.following(replace(SETTINGS, keys_per_load=10)) as loop:
        await asyncio.gather(*[world.say(thread) for thread in threads])
        await asyncio.sleep(0.1)
        assert all(world.agrees(loop, thread) for thread in threads)
        assert world.store.loads <= 4


# A database that is away, or another


@in_virtual_time
async def test_an_assignment_waits_for_the_database() -> None:
    world = World()
    await world.idle("a")
    world.store.advance()
    world.store.is_away = True

    async def come_back() -> None:
        await asyncio.sleep(2)
        world.store.is_away = False

    coming = asyncio.create_task(come_back())
    async with world.following() as loop:
        await asyncio.sleep(4)
        await coming
        assert world.follower.ready == [0]
        assert loop.partitions[0].relied_on == 1


@in_virtual_time
async def test_without_a_database_the_partition_is_read_from_its_beginning() -> None:
    world = World()
    await world.idle("a")
    world.store.advance()
    world.store.is_away = True
    async with world.following() as loop:
        await asyncio.sleep(SETTINGS.assign_wait_seconds + 1)
        assert world.agrees(loop, "a")
        await world.idle("new")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "new"), "a partition that was read whole needs no database"


@in_virtual_time
async def test_rows_of_another_log_are_never_mixed_in() -> None:
    """A stored position beyond the end: nothing of that store is used, and nothing leaves memory on its word."""
    other = World()
    for number in range(5):
        await other.idle(f"x{number}")
    other.store.advance()
    world = World()
    world.store = other.store
    await world.idle("x1")
    await world.say("x1", "ours")
    async with world.following(EVICTING, keys=True) as loop:
        assert loop.partitions[0].foreign_store
        assert world.agrees(loop, "x1")
        await asyncio.sleep(5)
        assert world.agrees(loop, "x1"), "it must not leave memory"
        await world.idle("x2")
        await asyncio.sleep(0.1)
        held = world.held(loop, "x2")
        assert held is not None and held.state.seq == 1


@in_virtual_time
async def test_a_log_that_grew_while_the_rows_were_read_is_not_another() -> None:
    world = World()
    await world.idle("a")

    async def grow() -> None:
        await world.say("a")
        world.store.advance()
        world.store._pause = at_once

    async def at_once() -> None:
        pass

    world.store._pause = grow
    async with world.following() as loop:
        assert not loop.partitions[0].foreign_store
        assert loop.partitions[0].relied_on == 2


@in_virtual_time
async def test_while_the_database_is_away_what_is_held_goes_on_and_the_rest_is_scanned_in_the_end() -> None:
    world = World()
    await world.idle("idle")
    await world.idle("active")
    await world.activate("active")
    world.store.advance()
    async with world.following() as loop:
        world.store.is_away = True
        await world.say("active", "on")
        await world.say("idle", "up")
        await asyncio.sleep(SETTINGS.stale_wait_seconds - 1)
        assert world.agrees(loop, "active") and world.held(loop, "idle") is None
        await asyncio.sleep(3)
        assert world.agrees(loop, "idle")


# Race: state goes back


@asynccontextmanager
async def gone_back() -> AsyncIterator[tuple[World, FoldLoop[list[int]]]]:
    """A thread left memory at the stored position; then the database came back at an older one."""
    world = World()
    await world.idle("a")
    await world.idle("active")
    await world.activate("active")
    for text in ("one", "two", "three"):
        await world.say("a", text)
    async with world.following(EVICTING) as loop:
        world.store.advance()
        await asyncio.sleep(2)
        assert world.held(loop, "a") is None, "it was evicted"
        world.store.go_back(0, 4)
        assert world.store.state(world.history("a").key).title == "one"
        await world.say("a", "four")
        await asyncio.sleep(2)
        assert world.held(loop, "a") is None, "never folded onto the older row"
        yield world, loop


@in_virtual_time
async def test_state_goes_back() -> None:
    """It waits for the projector."""
    async with gone_back() as (world, loop):
        world.store.advance(count=1)
        await asyncio.sleep(2)
        assert world.held(loop, "a") is None, "the stored position is still behind what was relied on"
        world.store.advance(count=1)
        await world.say("a", "five")
        await asyncio.sleep(2)
        assert world.agrees(loop, "a")
        assert loop.partitions[0].distrusted_since is None


@in_virtual_time
async def test_state_goes_back_and_stays() -> None:
    """With a limit: then the partition is scanned for the thread."""
    async with gone_back() as (world, loop):
        await asyncio.sleep(SETTINGS.stale_wait_seconds - 5)
        assert world.held(loop, "a") is None
        await world.say("a", "five")
        await asyncio.sleep(6)
        held = world.held(loop, "a")
        assert held is not None and world.agrees(loop, "a")
        assert held.from_start and held.work == [0, 3, 4, 5, 6, 7]
        assert world.follower.batches[-1] == (0, ["a"])
        await world.say("a", "six")
        await asyncio.sleep(SETTINGS.stale_wait_seconds)
        assert world.agrees(loop, "a"), "nor does it leave memory before the store has passed it"


@in_virtual_time
async def test_what_was_scanned_leaves_memory_when_the_store_has_caught_up() -> None:
    async with gone_back() as (world, loop):
        await asyncio.sleep(SETTINGS.stale_wait_seconds)
        assert world.agrees(loop, "a")
        world.store.advance()
        await asyncio.sleep(3)
        assert world.held(loop, "a") is None
        await world.say("a", "again")
        await asyncio.sleep(0.5)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_a_partition_that_waits_holds_back_no_other() -> None:
    world = World(partitions=2)
    for number in range(2):
        await world.idle(f"t{number}", partition=number)
        await world.say(f"t{number}", partition=number)
        world.store.advance(number)
    async with world.following() as loop:
        world.store.go_back(0, 1)
        await world.say("t0", "more", partition=0)
        await world.say("t1", "more", partition=1)
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "t1", partition=1)
        assert world.held(loop, "t0") is None


# Memory


@in_virtual_time
async def test_idle_threads_leave_once_they_are_stored_and_active_ones_stay() -> None:
    world = World()
    for thread in ("idle", "late", "kept", "active"):
        await world.idle(thread)
    await world.activate("active")
    world.follower.kept.add("kept")
    async with world.following(EVICTING) as loop:
        await asyncio.sleep(2)
        assert len(loop.partitions[0].threads) == 4, "nothing is stored yet"
        world.store.advance()
        await world.say("late")
        await asyncio.sleep(2)
        assert {key.thread for key in loop.partitions[0].threads} == {"late", "kept", "active"}
        await world.say("idle")
        await asyncio.sleep(0.5)
        assert world.agrees(loop, "idle")


@in_virtual_time
async def test_a_thread_that_becomes_active_while_the_position_is_read_stays() -> None:
    world = World()
    await world.idle("a")
    world.store.advance()

    async def slow() -> None:
        await asyncio.sleep(0.5)

    async with world.following(EVICTING) as loop:
        await world.say("a")
        await asyncio.sleep(0.5)
        world.store._pause = slow
        await asyncio.sleep(0.5)
        await world.activate("a")
        world.store.advance()
        await asyncio.sleep(5)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_too_many_waiting_records_pause_the_partition_until_they_are_loaded() -> None:
    world = World()
    threads = [f"t{number}" for number in range(10)]
    for thread in threads:
        await world.idle(thread)
    world.store.advance()
    async with world.following(replace(SETTINGS, parked_records_max=5, poll_ms=100)) as loop:
        world.store.is_away = True
        for _ in range(3):
            for thread in threads:
                await world.say(thread)
            await asyncio.sleep(0.2)
        partition = loop.partitions[0]
        assert partition.paused
        assert partition.parked_records <= 5 + len(threads)
        world.store.is_away = False
        await asyncio.sleep(2)
        assert not partition.paused and partition.parked_records == 0
        assert all(world.agrees(loop, thread) for thread in threads)


# Rebalances, failures, the end


@in_virtual_time
async def test_a_lost_partition_is_dropped_and_read_anew_when_it_comes_back() -> None:
    world = World()
    await world.idle("a")
    await world.activate("a")
    world.store.advance()
    tp = frozenset({TopicPartition(TOPIC, 0)})
    async with world.following() as loop:
        partition = loop.partitions[0]
        await loop.revoked(tp)
        assert (world.follower.lost, loop.partitions) == ([0], {})
        assert partition.lost and not partition.threads
        await loop.revoked(tp)
        assert world.follower.lost == [0]
        assert await loop.assigned(tp) == {TopicPartition(TOPIC, 0): 2}
        assert world.agrees(loop, "a")
        assert loop.partitions[0] is not partition


@in_virtual_time
async def test_states_that_come_after_the_partition_is_lost_are_dropped() -> None:
    world = World()
    await world.idle("a")
    world.store.advance()

    async def slow() -> None:
        await asyncio.sleep(1)

    async with world.following() as loop:
        world.store._pause = slow
        partition = loop.partitions[0]
        await world.say("a")
        await asyncio.sleep(0.5)
        assert partition.parked
        await loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
        await asyncio.sleep(2)
        assert not partition.threads and world.follower.batches == []


@in_virtual_time
async def test_a_partition_lost_during_its_scan_is_left_alone() -> None:
    async with gone_back() as (world, loop):
        partition = loop.partitions[0]
        world.broker.faults._fetch_seconds_max = 3.0
        await asyncio.sleep(SETTINGS.stale_wait_seconds - 2)
        await loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
        await asyncio.sleep(20)
        assert not partition.threads


@in_virtual_time
async def test_a_log_that_is_away_during_a_scan_is_asked_again() -> None:
    async with gone_back() as (world, loop):
        world.broker.is_away = True
        await asyncio.sleep(2 * SETTINGS.stale_wait_seconds)
        assert world.held(loop, "a") is None
        world.broker.come_back()
        await asyncio.sleep(3)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_a_thread_that_cannot_be_folded_is_set_aside_and_the_partition_goes_on() -> None:
    world = World()
    world.follower.fails_on.add("bad")
    async with world.following() as loop:
        await world.idle("bad")
        await world.idle("good")
        await world.say("bad")
        await world.say("good")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "good")
        held = world.held(loop, "bad")
        assert held is not None and held.quarantined == "RuntimeError: a bug"
        assert world.follower.quarantined == ["bad"], "it is said once"
        assert all("bad" not in threads for _, threads in world.follower.batches)


@in_virtual_time
async def test_it_ends_when_it_is_told_to() -> None:
    world = World()
    async with world.following() as loop:
        assert loop.not_ready() is None
        world.stopping.set()
        await asyncio.sleep(1)
        await world.idle("a")
        await asyncio.sleep(1)
        assert world.held(loop, "a") is None


@in_virtual_time
async def test_it_is_not_ready_while_it_reads() -> None:
    world = World()
    for number in range(10):
        await world.idle(f"t{number}")
    world.broker.faults._poll_records_max = 1
    world.broker.faults._fetch_seconds_max = 0.5
    follower, log = world.follower, world.log
    loop: FoldLoop[list[int]] = FoldLoop(log, world.store, follower, TOPIC, SETTINGS)
    assert loop.not_ready() == "no partitions"
    async with world.following() as loop:
        assert loop.not_ready() == "reading up to the end of partitions [0]"
        await asyncio.sleep(10)
        assert loop.not_ready() is None


def test_the_helpers_make_what_they_say() -> None:
    history = History().idle()
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    assert history.state.turn is not None
