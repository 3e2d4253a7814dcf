"""The frame of following services: from the beginning, from rows, and without a database."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from schemas.events import ThreadClosed, ThreadCloseRequested
from services.chassis.log.port import LogUnavailableError, Outgoing, TopicPartition
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.fold_loop import EVICTING, SETTINGS, TOPIC, FoldWorld

# From the beginning


@in_virtual_time
async def test_without_rows_everything_is_read_and_acted_for_once_it_is_read() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
    async with world.following() as loop:
        assert loop.not_ready() is None
        assert world.follower.ready == [0]


@in_virtual_time
async def test_a_log_that_is_away_while_partitions_come_is_waited_for() -> None:
    """What runs for the partitions that this process has goes on meanwhile."""
    world = FoldWorld()
    await world.idle("a")
    asked: list[str] = []

    def at_first_away(name: str) -> None:
        ask = getattr(world.log, name)

        async def answer(tps: Iterable[TopicPartition]) -> Any:
            asked.append(name)
            if asked.count(name) < 4:
                raise LogUnavailableError("look up offsets: no answer")
            return await ask(tps)

        setattr(world.log, name, answer)

    at_first_away("begin_offsets")
    at_first_away("end_offsets")
    async with world.following() as loop:
        await asyncio.sleep(10 * SETTINGS.load_retry_seconds)
        assert world.follower.ready == [0] and world.agrees(loop, "a")
        assert sorted(asked) == ["begin_offsets"] * 4 + ["end_offsets"] * 4


@in_virtual_time
async def test_records_that_are_in_no_thread_are_passed_over() -> None:
    world = FoldWorld()
    await world.log.appender.append(TOPIC, 0, [Outgoing(b"\xff", b"{}"), Outgoing(b"acme/a", None)])
    await world.idle("a")
    async with world.following() as loop:
        assert world.agrees(loop, "a")
        assert loop.records_folded == 1


# From rows


@in_virtual_time
async def test_active_threads_come_from_their_rows_and_reading_begins_at_the_stored_position() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
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
    world = FoldWorld()
    await world.idle("old")
    world.store.advance()
    async with world.following() as loop:
        await world.idle("new")
        await asyncio.sleep(0.1)
        held = world.held(loop, "new")
        assert held is not None and held.from_start and world.agrees(loop, "new")


@in_virtual_time
async def test_the_keys_of_the_partition_spare_new_threads_the_question() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
    await world.idle("a")
    world.store.advance()
    loading = asyncio.Event()

    async def slow() -> None:
        if loading.is_set():
            await asyncio.sleep(1)

    world.store.pause = slow
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
    world = FoldWorld()
    await world.idle("idle")
    await world.idle("active")
    await world.activate("active")
    world.store.advance()
    async with world.following() as loop:

        async def slow() -> None:
            await asyncio.sleep(5)

        world.store.pause = slow
        await world.say("idle")
        await world.say("active")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "active") and not world.agrees(loop, "idle")
        await world.say("idle")
        await asyncio.sleep(6)
        assert world.agrees(loop, "idle")


@in_virtual_time
async def test_more_threads_than_one_load_takes_are_loaded_without_a_pause() -> None:
    world = FoldWorld()
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
    world = FoldWorld()
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
    world = FoldWorld()
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
    other = FoldWorld()
    for number in range(5):
        await other.idle(f"x{number}")
    other.store.advance()
    world = FoldWorld()
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
    world = FoldWorld()
    await world.idle("a")

    async def grow() -> None:
        await world.say("a")
        world.store.advance()
        world.store.pause = at_once

    async def at_once() -> None:
        pass

    world.store.pause = grow
    async with world.following() as loop:
        assert not loop.partitions[0].foreign_store
        assert loop.partitions[0].relied_on == 2


@in_virtual_time
async def test_while_the_database_is_away_what_is_held_goes_on_and_the_rest_is_scanned_in_the_end() -> None:
    world = FoldWorld()
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


@in_virtual_time
async def test_without_a_store_the_partition_is_read_and_threads_stay_until_they_are_closed() -> None:
    world = FoldWorld()
    for thread in ("idle", "closed"):
        await world.idle(thread)
    async with world.following(EVICTING, is_stored=False) as loop:
        assert world.agrees(loop, "idle") and world.agrees(loop, "closed")
        await world.append("closed", ThreadCloseRequested(), ThreadClosed())
        await asyncio.sleep(3 * EVICTING.evict_every_seconds)
        assert world.held(loop, "idle") is not None
        assert world.held(loop, "closed") is None
        await world.idle("new")
        await world.say("idle")
        await asyncio.sleep(0.1)
        assert world.agrees(loop, "new") and world.agrees(loop, "idle"), "what was let go makes no new thread wait"
        assert world.store.loads == 0
