"""What becomes of claims, runs and ends whose partition goes while they are under way."""

import asyncio
from typing import Any

import pytest

from schemas.events import ToolCallFinished
from services.chassis.log.port import LogUnavailableError
from tests.support.simulated.chosen_faults import ChosenFaults
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.executor import P0, begin, executor, runs, statuses, world_of


@pytest.mark.parametrize("why", ["the partition is gone", "it is told to stop"])
@in_virtual_time
async def test_a_claim_that_is_given_up_is_given_back(why: str) -> None:
    """Its append was reported as failed, and was stored all the same: who finds it must not take it for one that ran."""
    faults = ChosenFaults("ack_lost")
    async with world_of(("unsafe", {}), faults=faults) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.started": 31}
        poll, reader = process.reader.poll, process.log.reader

        async def deaf(timeout_ms: int) -> Any:
            polled = await poll(timeout_ms)
            if process.executor.slots.taken:
                await asyncio.sleep(3600)
            return polled

        async def slow(*arguments: Any) -> Any:
            await asyncio.sleep(2)
            return await reader(*arguments)

        process.reader.poll = deaf  # type: ignore[method-assign]  # it never reads its claim back
        process.log.reader = slow  # type: ignore[method-assign, assignment]
        key = await begin(world)
        failures = process.executor.metrics.append_failures
        await world.until(lambda: failures._value.get() == 1, 60, every=0.01)
        assert statuses(world.of(key))[-1] == "running"
        if why == "it is told to stop":
            await process.stop()
        else:
            await process.loop.revoked(P0)
            await asyncio.sleep(5)
        assert process.executor.slots.taken == 0
        await executor(world, "other", group="other")
        judged = await world.until_rest(key)
        assert "unknown" not in statuses(judged)
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_an_end_that_is_read_back_before_it_is_acknowledged_is_forgotten_once_it_is() -> None:
    """Also where the partition had gone and come back meanwhile: what is held of the thread is another one."""
    faults = ChosenFaults("ack_lost")
    async with world_of(("unsafe", {"seconds": 10}), faults=faults) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world)
        await process.loop.revoked(P0)
        offsets = await process.loop.assigned(P0)
        process.reader.seek(*next(iter(offsets.items())))
        faults.kinds = {"tool_call.finished": 1}
        await world.until_rest(key)
        await asyncio.sleep(5)
        assert process.executor.runs.by_thread == {}
        await process.loop.revoked(P0)
        await asyncio.sleep(1)
        assert process.executor.orphaned_calls.followed == set()


@in_virtual_time
async def test_a_log_that_is_away_for_a_moment_ends_no_call_of_a_lost_partition() -> None:
    async with world_of(("unsafe", {"seconds": 20})) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world)
        reader = process.log.reader

        async def away(*arguments: Any) -> Any:
            process.log.reader = reader  # type: ignore[method-assign]  # once
            raise LogUnavailableError("open a reader: no answer")

        process.log.reader = away  # type: ignore[method-assign, assignment]
        await process.loop.revoked(P0)
        judged = await world.until_rest(key)
        assert [event.outcome for event in judged.applied(ToolCallFinished)] == ["succeeded"]
        await asyncio.sleep(2)
        assert process.is_alive
        assert process.executor.runs.by_thread == {} and process.executor.orphaned_calls.followed == set()
