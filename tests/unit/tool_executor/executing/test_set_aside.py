"""A thread that the executor has set aside while its tool runs, and takes up again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from schemas.events import ToolCallFinished, ToolCallLost, TurnCancelRequested
from services.tool_executor.executing import orphaned_calls, own_claims
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.executor import LEASE, P0, begin, executor, world_of
from tests.support.worlds.services import ExecutorProcess, World


class Broken:
    """A bug in `claimable`, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_broken = False
        self._claimable: Callable[..., Any] = own_claims.claimable  # type: ignore[attr-defined]  # the name that the module uses
        monkeypatch.setattr(own_claims, "claimable", self.claimable)

    def claimable(self, *arguments: Any) -> Any:
        if self.is_broken:
            raise RuntimeError("a bug in claim")
        return self._claimable(*arguments)


async def set_aside_while_it_runs(world: World, process: ExecutorProcess, broken: Broken) -> Any:
    key = await begin(world)
    await world.until(lambda: len(world.ledger.runs) == 1, 20)
    broken.is_broken = True
    await world.submit(key, "i2")
    await world.until(lambda: process.held(key).quarantined is not None, 20)
    broken.is_broken = False
    return key


@in_virtual_time
async def test_its_tool_runs_on_and_its_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch)
    async with world_of(("unsafe", {"seconds": 20})) as world:
        process = await executor(world)
        key = await set_aside_while_it_runs(world, process, broken)
        await world.until(lambda: process.held(key).quarantined is None, 20)
        judged = await world.until_rest(key, turns=2)
        assert [end.outcome for end in judged.applied(ToolCallFinished)] == ["succeeded", "succeeded"]
        assert judged.applied(ToolCallLost) == []
        assert set(world.ledger.effects().values()) == {1}
        assert process.executor.runs.by_thread == {}


@in_virtual_time
async def test_a_cancel_that_came_meanwhile_reaches_its_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch)
    async with world_of(("unsafe", {"seconds": 60})) as world:
        process = await executor(world)
        key = await set_aside_while_it_runs(world, process, broken)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await world.until(lambda: world.ledger.runs[0].cancelled, 20)
        judged = await world.until_rest(key, turns=2)
        assert len(judged.applied(ToolCallLost)) == 1, "killed midway, and not pure"


@in_virtual_time
async def test_the_lease_of_another_is_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch)
    async with world_of(("unsafe", {"seconds": 600})) as world:
        dying = await executor(world, "a")
        key = await begin(world)
        await world.until(lambda: len(world.ledger.runs) == 1, 20)
        dying.crash()
        process = await executor(world, "b")
        await world.until(lambda: 0 in process.loop.partitions, 20)
        await world.until(lambda: process.held(key) is not None and process.held(key).work.watched, 20)
        broken.is_broken = True
        await world.submit(key, "i2")
        await world.until(lambda: process.held(key).quarantined is not None, 20)
        broken.is_broken = False
        await world.until(lambda: world.of(key).applied(ToolCallLost), 5 * LEASE)
        await asyncio.sleep(1)
        assert process.held(key).work.watched == {}


@in_virtual_time
async def test_a_record_of_a_lost_partition_that_cannot_be_folded_ends_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug in the fold")

    async with world_of(("unsafe", {"seconds": 20})) as world:
        process = await executor(world)
        key = await begin(world)
        await world.until(lambda: len(world.ledger.runs) == 1, 20)
        await process.loop.revoked(P0)
        monkeypatch.setattr(orphaned_calls, "fold", broken)
        await world.submit(key, "i2")
        await asyncio.sleep(5)
        assert process.is_alive
        await executor(world, "other", group="other")
        judged = await world.until_rest(key, turns=2)
        assert judged.applied(ToolCallLost) == []
        assert set(world.ledger.effects().values()) == {1}
        assert process.executor.runs.by_thread == {} and process.executor.orphaned_calls.followed == set()
