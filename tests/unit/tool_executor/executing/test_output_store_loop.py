"""Whole outputs on a simulated log: an event never names what the store does not have, wherever its executor dies."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from schemas.events import ToolCallFinished
from services.chassis.artifacts.store import ArtifactsUnavailableError
from services.tool_executor.attachments import whole_text
from services.tool_executor.executing.output_store import OutputStore
from services.tool_executor.metrics import ExecutorMetrics
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest, ToolRunner
from tests.support.memory.artifacts import MemoryArtifacts
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.executor import begin, executor, status_is, world_of
from tests.support.worlds.services import ExecutorProcess, World


class SaysMuch:
    """Another tool's end, with more to say than fits."""

    def __init__(self, tool: ToolRunner) -> None:
        self._tool = tool

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        end = await self._tool.run(request, emit, cancelled)
        said = whole_text(f"{request.call} by {request.attempt} " * 4_000)
        return ToolEnd(end.outcome, end.result, seconds=end.seconds, attachments=said)


def with_store(process: ExecutorProcess, store: MemoryArtifacts) -> ExecutorProcess:
    metrics = ExecutorMetrics.register(CollectorRegistry())
    process.executor.tool_runs.tools = OutputStore(SaysMuch(process.executor.tool_runs.tools), store, metrics)
    return process


class Watched(MemoryArtifacts):
    """Calls `at` before and after each put."""

    at: Any = None

    async def put(self, *arguments: Any) -> Any:
        await self.at("before")
        stored = await super().put(*arguments)
        await self.at("after")
        return stored


def named(world: World, key: Any) -> list[str]:
    return [one.sha256 for event in world.of(key).applied(ToolCallFinished) for one in event.artifacts]


@in_virtual_time
async def test_the_store_has_it_before_the_log_names_it() -> None:
    async with world_of(("idempotent", {})) as world:
        store = Watched(world.clock)
        seen: list[tuple[str, int]] = []

        async def at(moment: str) -> None:
            seen.append((moment, len(named(world, key))))

        store.at = at
        with_store(await executor(world), store)
        key = await begin(world)
        await world.until_rest(key)
        assert seen == [("before", 0), ("after", 0)]
        [sha256] = named(world, key)
        assert ("acme", sha256) in store.objects


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe"])
@in_virtual_time
async def test_an_executor_that_dies_while_it_stores_leaves_no_name_of_nothing(effect: str, moment: str) -> None:
    async with world_of((effect, {})) as world:
        store = Watched(world.clock)
        first = with_store(await executor(world, "e1"), store)

        async def dies(now: str) -> None:
            if now == moment and first.is_alive:
                first.crash()
                await asyncio.Event().wait()

        store.at = dies
        key = await begin(world)
        await world.until(lambda: not first.is_alive, 60, every=0.01)
        with_store(await executor(world, "e2"), store)
        if effect == "unsafe":
            await status_is(world, key, "unknown")
            assert named(world, key) == []
            return
        await world.until_rest(key)
        [sha256] = named(world, key)
        assert ("acme", sha256) in store.objects


@in_virtual_time
async def test_a_store_that_is_away_costs_no_call() -> None:
    async with world_of(("unsafe", {})) as world:
        store = Watched(world.clock)

        async def away(_moment: str) -> None:
            raise ArtifactsUnavailableError("away")

        store.at = away
        with_store(await executor(world), store)
        key = await begin(world)
        [finished] = (await world.until_rest(key)).applied(ToolCallFinished)
        assert (finished.outcome, finished.artifacts) == ("succeeded", ())
        assert "could not be kept" in finished.result["content"][-1]["text"]


@in_virtual_time
async def test_a_store_that_hangs_holds_a_call_up_only_so_long() -> None:
    async with world_of(("unsafe", {})) as world:
        store = Watched(world.clock)

        async def hangs(_moment: str) -> None:
            await asyncio.Event().wait()

        store.at = hangs
        with_store(await executor(world), store)
        key = await begin(world)
        [finished] = (await world.until_rest(key)).applied(ToolCallFinished)
        assert finished.outcome == "succeeded"
        assert "could not be kept" in finished.result["content"][-1]["text"]
