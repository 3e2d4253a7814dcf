"""The frame of following services: states that went back, evictions, rebalances, failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from services.chassis.following.fold_loop import FoldLoop
from services.chassis.following.followed_threads import KEPT_MAX
from services.chassis.log.port import TopicPartition
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.fold_loop import EVICTING, SETTINGS, TOPIC, FoldWorld

PAUSES = SETTINGS.quarantine

# Race: state goes back


@asynccontextmanager
async def gone_back() -> AsyncIterator[tuple[FoldWorld, FoldLoop[list[int]]]]:
    """A thread left memory at the stored position; then the database came back at an older one."""
    world = FoldWorld()
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
    world = FoldWorld(partitions=2)
    threads = [world.thread_of(number) for number in range(2)]
    for number, thread in enumerate(threads):
        await world.idle(thread, partition=number)
        await world.say(thread, partition=number)
        world.store.advance(number)
    async with world.following() as loop:
        world.store.go_back(0, 1)
        for number, thread in enumerate(threads):
            await world.say(thread, "more", partition=number)
        await asyncio.sleep(0.1)
        assert world.agrees(loop, threads[1], partition=1)
        assert world.held(loop, threads[0]) is None


@in_virtual_time
async def test_a_record_in_another_partition_than_its_key_belongs_to_is_no_threads() -> None:
    world = FoldWorld(partitions=2)
    astray, at_home = world.thread_of(0), world.thread_of(1)
    async with world.following() as loop:
        await world.idle(astray, partition=1)
        await world.activate(astray, partition=1)
        await world.idle(at_home, partition=1)
        await asyncio.sleep(0.1)
        assert world.agrees(loop, at_home, partition=1)
        assert [thread for _, threads in world.follower.batches for thread in threads] == [at_home]
        assert world.held(loop, astray) is None and not loop.partitions[1].parked


# Memory


@in_virtual_time
async def test_idle_threads_leave_once_they_are_stored_and_active_ones_stay() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
    await world.idle("a")
    world.store.advance()

    async def slow() -> None:
        await asyncio.sleep(0.5)

    async with world.following(EVICTING) as loop:
        await world.say("a")
        await asyncio.sleep(0.5)
        world.store.pause = slow
        await asyncio.sleep(0.5)
        await world.activate("a")
        world.store.advance()
        await asyncio.sleep(5)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_too_many_waiting_records_pause_the_partition_until_they_are_loaded() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
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
    world = FoldWorld()
    await world.idle("a")
    world.store.advance()

    async def slow() -> None:
        await asyncio.sleep(1)

    async with world.following() as loop:
        world.store.pause = slow
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
    world = FoldWorld()
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
async def test_a_thread_that_was_set_aside_heals_once_what_failed_is_over() -> None:
    world = FoldWorld()
    await world.idle("a")
    world.store.advance()
    async with world.following() as loop:
        world.follower.fails_on.add("a")
        await world.say("a", "one")
        await asyncio.sleep(0.1)
        await world.say("a", "two")
        world.follower.fails_on.clear()
        world.store.advance()
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.follower.refolded == ["a"]
        assert world.agrees(loop, "a"), "with the record that came meanwhile"
        assert world.follower.batches[-1] == (0, ["a"]), "and is acted for"
        await world.say("a", "three")
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.agrees(loop, "a")
        assert not loop.partitions[0].quarantine


@in_virtual_time
async def test_a_thread_that_fails_again_is_tried_after_longer_and_longer_pauses() -> None:
    world = FoldWorld()
    world.follower.fails_on.add("bad")
    async with world.following() as loop:
        await world.idle("bad")
        for _ in range(120):
            await world.say("bad")
            world.store.advance()
            await asyncio.sleep(10)
        tries = len(world.follower.quarantined)
        assert tries == 1 + len(world.follower.refolded) == 9, "pauses of 5, 10, 20, 40 … of 1,200 seconds"
        held = world.held(loop, "bad")
        assert held is not None and held.quarantined is not None
        seconds = [since for _, since in world.follower.reports]
        assert seconds == sorted(seconds) and seconds[0] <= 1 and seconds[-1] > 1_100, "counted from the first failure"
        assert 100 <= len(seconds) <= 120, "every ten seconds while it is set aside"


@in_virtual_time
async def test_a_thread_is_not_refolded_from_rows_that_lack_its_last_record() -> None:
    world = FoldWorld()
    await world.idle("a")
    world.store.advance()
    async with world.following() as loop:
        world.follower.fails_on.add("a")
        await world.say("a", "one")
        await asyncio.sleep(0.1)
        world.follower.fails_on.clear()
        await world.say("a", "two")
        world.store.advance(count=1)
        await asyncio.sleep(60)
        assert world.follower.refolded == []
        world.store.is_away = True
        await asyncio.sleep(60)
        assert world.follower.refolded == []
        world.store.is_away = False
        await world.say("a", "three")
        await world.say("a", "four")
        world.store.advance(count=1)
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.agrees(loop, "a"), "of the last two the store knows nothing: they were kept for it"


@in_virtual_time
async def test_what_is_kept_for_a_refold_has_a_limit() -> None:
    world = FoldWorld()
    await world.idle("a")
    async with world.following() as loop:
        world.follower.fails_on.add("a")
        await world.say("a")
        await asyncio.sleep(PAUSES.first_seconds + 2)
        world.follower.fails_on.clear()
        for number in range(KEPT_MAX + 2):
            await world.say("a", str(number))
        await asyncio.sleep(0.1)
        held = world.held(loop, "a")
        assert held is not None and held.kept is None
        world.store.advance(count=KEPT_MAX)
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.follower.refolded == []
        world.store.advance()
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_a_partition_that_is_lost_while_a_thread_is_refolded_is_left_alone() -> None:
    world = FoldWorld()

    async def slow() -> None:
        await asyncio.sleep(3)

    async with world.following() as loop:
        partition = loop.partitions[0]
        world.follower.fails_on.add("a")
        await world.idle("a")
        world.store.advance()
        world.store.pause = slow
        await asyncio.sleep(PAUSES.first_seconds + 2)
        await loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
        await asyncio.sleep(5)
        assert world.follower.refolded == [] and not partition.threads


@in_virtual_time
async def test_a_thread_that_is_set_aside_in_a_long_scan_is_reported_and_heals_afterwards() -> None:
    world = FoldWorld()
    await world.idle("a")
    await world.idle("b")
    world.store.advance()
    async with world.following(replace(SETTINGS, stale_wait_seconds=1)) as loop:
        world.store.is_away = True
        world.follower.fails_on.add("a")
        for number in range(20):
            await world.say("b", str(number))
        await world.say("a")
        world.broker.faults._poll_records_max = 1
        world.broker.faults._fetch_seconds_max = 2
        await asyncio.sleep(60)
        held = world.held(loop, "a")
        assert held is not None and held.quarantined is not None
        assert world.follower.reports != []
        world.follower.fails_on.clear()
        world.store.is_away = False
        world.store.advance()
        await asyncio.sleep(PAUSES.first_seconds + 2)
        assert world.agrees(loop, "a")


@in_virtual_time
async def test_many_threads_that_were_set_aside_are_read_anew_some_at_a_time() -> None:
    world = FoldWorld()
    names = [f"t{number}" for number in range(5)]
    world.follower.fails_on.update(names)
    async with world.following(replace(SETTINGS, keys_per_load=2)) as loop:
        for name in names:
            await world.idle(name)
        world.store.advance()
        await asyncio.sleep(0.5)
        assert world.follower.quarantined == names
        world.follower.fails_on.clear()
        counts = []
        for _ in range(10):
            await asyncio.sleep(1)
            counts.append(len(world.follower.refolded))
        assert list(dict.fromkeys(counts)) == [0, 2, 4, 5]
        assert world.follower.refolded == names
        assert all(world.agrees(loop, name) for name in names)


@in_virtual_time
async def test_a_thread_set_aside_never_leaves_memory() -> None:
    world = FoldWorld()
    world.follower.fails_on.add("a")
    async with world.following(
        replace(EVICTING, quarantine=replace(PAUSES, first_seconds=1e6, most_seconds=1e6))
    ) as loop:
        await world.idle("a")
        world.store.advance()
        await asyncio.sleep(5)
        assert world.held(loop, "a") is not None


@in_virtual_time
async def test_it_ends_when_it_is_told_to() -> None:
    world = FoldWorld()
    async with world.following() as loop:
        assert loop.not_ready() is None
        world.stopping.set()
        await asyncio.sleep(1)
        await world.idle("a")
        await asyncio.sleep(1)
        assert world.held(loop, "a") is None


@in_virtual_time
async def test_it_is_not_ready_while_it_reads() -> None:
    world = FoldWorld()
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
