"""Who takes over recovers, who leaves hands over, and two owners do no harm."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from schemas.config import Config
from schemas.events import (
    StepFailed,
    StepStarted,
    ToolCallDispatched,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
)
from schemas.ids import ThreadKey
from services.chassis.log.port import TopicPartition
from services.runtime.models.port import (
    ModelAnswer,
    ModelCall,
)
from tests.support.simulated.chosen_faults import ChosenFaults
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.runtime import (
    DONE,
    ONE,
    PlayedModel,
    asked,
    runtime,
    world_of,
)
from tests.support.worlds.services import TOPIC, ExecutorProcess, RuntimeProcess, World


@in_virtual_time
async def test_a_dead_owners_step_is_recovered_and_asked_again() -> None:
    model = PlayedModel(seconds=20)
    async with world_of(model) as world:
        first = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asked(world)
        first.crash()
        second = await runtime(world, "r2")
        judged = await world.until_rest(key)
        (recovered,) = judged.applied(TurnRecovered)
        assert recovered.owner == second.owner and first.owner in recovered.found
        assert [event.attempt for event in judged.applied(StepStarted)] == [1, 2]
        assert judged.state.last_outcome == "completed"


@in_virtual_time
async def test_or_its_turn_is_interrupted_and_the_queue_held() -> None:
    model = PlayedModel(seconds=20)
    async with world_of(model) as world:
        first = await runtime(world)
        key = await world.create("t", Config(model="m", on_recovery="interrupt"))
        await world.submit(key, "i1")
        await world.submit(key, "i2")
        await asked(world)
        first.crash()
        await runtime(world, "r2")
        await world.until(lambda: world.of(key).state.last_outcome is not None)
        await asyncio.sleep(5)
        state = world.of(key).state
        assert (state.last_outcome, [item.held for item in state.queue]) == ("interrupted", [True])
        await world.submit(key, "i3")
        judged = await world.until_rest(key, turns=3)
        assert [event.outcome for event in judged.applied(TurnEnded)] == ["interrupted", "completed", "completed"]
        assert len(judged.applied(TurnRecovered)) == 1


@in_virtual_time
async def test_a_takeover_is_also_seen_on_a_thread_whose_row_was_idle() -> None:
    """It comes into memory after its partition is ready, because its row is loaded late."""
    model = PlayedModel(seconds=20)
    async with world_of(model) as world:
        first = await runtime(world)
        key = await world.create("t")
        await asyncio.sleep(2)
        position = world.store.next_offset(0)
        world.store.advance = lambda *_: None  # type: ignore[method-assign]  # the projector stands still
        await world.submit(key, "i1")
        await asked(world)
        first.crash()
        assert world.store.next_offset(0) == position == 1

        async def slow() -> None:
            await asyncio.sleep(3)

        world.store.pause = slow
        await runtime(world, "r2")
        judged = await world.until_rest(key)
        assert len(judged.applied(TurnRecovered)) == 1


@in_virtual_time
async def test_a_recovery_whose_append_failed_is_said_again() -> None:
    model = PlayedModel(seconds=20)
    faults = ChosenFaults()
    async with world_of(model, faults=faults) as world:
        first = await runtime(world)
        key = await world.create("t", Config(model="m", on_recovery="interrupt"))
        await world.submit(key, "i1")
        await asked(world)
        first.crash()
        faults.kinds = {"turn.recovered": 40}
        await runtime(world, "r2")
        await asyncio.sleep(50)
        faults.kinds = {}
        await world.until(lambda: world.of(key).state.turn is None)
        judged = world.of(key)
        assert judged.state.last_outcome == "interrupted"
        assert len(judged.applied(TurnRecovered)) == 1


@in_virtual_time
async def test_a_takeover_of_a_cancelled_turn_leaves_the_next_one_alone() -> None:
    """What was found open is gone with its turn: the next turn's step was never found."""
    model = PlayedModel(seconds=20)
    async with world_of(model) as world:
        first = await runtime(world)
        key = await world.create("t", Config(model="m", on_recovery="interrupt"))
        await world.submit(key, "i1")
        await world.submit(key, "i2")
        await asked(world)
        first.crash()
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await runtime(world, "r2")
        judged = await world.until_rest(key, turns=2)
        assert [event.outcome for event in judged.applied(TurnEnded)] == ["aborted", "completed"]
        assert judged.applied(TurnRecovered) == []


async def stops(process: RuntimeProcess) -> None:
    await process.stop()


async def loses_its_partition(process: RuntimeProcess) -> None:
    await process.loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
    await process.log.appender.flush()
    process.crash()


@pytest.mark.parametrize("leave", [stops, loses_its_partition])
@in_virtual_time
async def test_who_leaves_gracefully_hands_over(leave: Callable[[RuntimeProcess], Awaitable[None]]) -> None:
    """The next owner asks the model at once, the try does not count, and it is no recovery."""
    model = PlayedModel(seconds=20)
    async with world_of(model) as world:
        first = await runtime(world)
        key = await world.create("t", Config(model="m", on_recovery="interrupt"))
        await world.submit(key, "i1")
        await asked(world)
        await leave(first)
        assert model.cancelled == 1
        await runtime(world, "r2")
        judged = await world.until_rest(key)
        (failed,) = judged.applied(StepFailed)
        assert failed.handed_over
        assert judged.applied(TurnRecovered) == []
        assert (judged.state.last_outcome, len(model.requests)) == ("completed", 2)


@in_virtual_time
async def test_a_partition_that_is_kept_in_a_rebalance_keeps_its_work() -> None:
    model = PlayedModel(seconds=20)
    options = replace(ONE, partitions=2)
    async with world_of(model, options=options) as world:
        first = await runtime(world, "a")
        keys = await threads_in_each(world)
        for key in keys:
            await world.submit(key, "i1")
        await asked(world, 2)
        await runtime(world, "b")
        await asyncio.sleep(1)
        assert len(first.loop.partitions) == 1
        for key in keys:
            await world.until_rest(key)
        attempts = [[event.attempt for event in world.of(key).applied(StepStarted)] for key in keys]
        assert sorted(attempts) == [[1], [1, 2]]


async def threads_in_each(world: World) -> list[ThreadKey]:
    """A thread in each of two partitions."""
    found: dict[int, ThreadKey] = {}
    for number in range(20):
        key = await world.create(f"t{number}")
        found.setdefault(world.partition_of(key), key)
    return [found[0], found[1]]


@in_virtual_time
async def test_two_owners_end_every_turn_once() -> None:
    model = PlayedModel(ModelAnswer([], [ModelCall("unsafe", {})]), DONE, seconds=0.3)
    async with world_of(model) as world:
        await runtime(world, "a")
        await runtime(world, "zombie", group="zombies")
        await ExecutorProcess(world, "e1").start()
        key = await world.create("t")
        for number in range(3):
            await world.submit(key, f"i{number}")
        judged = await world.until_rest(key, turns=3)
        assert [event.turn for event in judged.applied(TurnEnded)] == [1, 2, 3]
        assert {event.attempt for event in judged.applied(ToolCallDispatched)} == {1}
