"""Child threads under runtimes that crash: what begins one, what tells its end, what stops it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from schemas.codec import Record
from schemas.events import (
    InputSubmitted,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadCreated,
    ToolCallFinished,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import ThreadKey
from schemas.state import ThreadState
from schemas.thread import Verdict
from services.chassis.log.port import LogUnavailableError
from services.runtime.deciding.decisions import ChildEnd
from services.runtime.models.port import ModelFailure
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.children import OPTIONS, SaidModel, child, family, parent, spawns
from tests.support.worlds.runtime import runtime
from tests.support.worlds.services import LIMITS, RuntimeProcess, World

ANSWERED = {"delegate": spawns("count")}


def final_answer(world: World, key: ThreadKey) -> str:
    """Of the last step that finished."""
    finished = [record.data for record, verdict, _ in world.of(key).records if record.kind == "step.finished"]
    return "".join(item.text for item in finished[-1].items)


@in_virtual_time
async def test_a_child_answers_for_its_parents_call() -> None:
    model = SaidModel(ANSWERED)
    async with family(model) as world:
        await runtime(world)
        key = await parent(world, tools=("spawn_thread", "pure"), instructions="be brief")
        judged = await world.until_rest(key)
        born = world.of(child(key))
        assert world.partition_of(key) != world.partition_of(child(key))
        [created] = born.applied(ThreadCreated)
        assert created.lineage.parent == "parent" and created.lineage.call == "1.1.0" and created.lineage.depth == 1
        assert created.config.tools == ("spawn_thread", "pure") and created.config.instructions == "be brief"
        [submitted] = born.applied(InputSubmitted)
        assert submitted.items[0].text == "count"
        [finished] = judged.applied(ToolCallFinished)
        told = {"thread": child(key).thread, "content": [{"type": "text", "text": "heard: count"}]}
        assert (finished.outcome, finished.result) == ("succeeded", told)
        assert final_answer(world, key) == "heard: heard: count"
        assert [event.outcome for event in (*judged.applied(TurnEnded), *born.applied(TurnEnded))] == ["completed"] * 2


@in_virtual_time
async def test_the_chain_that_the_lineage_names_is_the_parents() -> None:
    async with family(SaidModel(ANSWERED)) as world:
        await runtime(world)
        key = await parent(world)
        judged = await world.until_rest(key)
        [created] = world.of(child(key)).applied(ThreadCreated)
        states = {state.seq: state for _, _, state in judged.records}
        assert states[created.lineage.seq].chain == created.lineage.chain
        [at] = [state.seq for record, _, state in judged.records if record.kind == "tool_call.dispatched"]
        assert created.lineage.seq >= at


@in_virtual_time
async def test_it_does_not_begin_before_the_dispatch_was_read_back() -> None:
    async with family(SaidModel(ANSWERED)) as world:
        process = await runtime(world)
        key = await parent(world)
        order: list[str] = []
        kept = world.on_judged

        def noted(record: Record, verdict: Verdict, state: ThreadState) -> None:
            order.append(record.kind)
            if record.kind == "tool_call.dispatched":
                process.pause()

        world.on_judged = noted
        await world.until(lambda: "tool_call.dispatched" in order)
        await asyncio.sleep(5)
        assert child(key) not in world.judged()
        world.on_judged = kept
        process.resume()
        await world.until_rest(key)
        assert world.of(child(key)).state.last_outcome == "completed"


@in_virtual_time
async def test_several_children_work_beside_each_other() -> None:
    model = SaidModel({"delegate": spawns("a", "b", "c")}, seconds=5)
    async with family(model) as world:
        await runtime(world)
        key = await parent(world)
        began = world.clock.now_ms()
        await world.until_rest(key)
        answer = final_answer(world, key)
        assert sorted(answer.removeprefix("heard: ").split(" | ")) == ["heard: a", "heard: b", "heard: c"]
        assert world.clock.now_ms() - began < 20_000


@in_virtual_time
async def test_grandchildren() -> None:
    model = SaidModel({"delegate": spawns("split"), "split": spawns("count")})
    async with family(model) as world:
        await runtime(world)
        key = await parent(world)
        await world.until_rest(key)
        grandchild = child(child(key))
        assert world.of(grandchild).state.lineage.depth == 2
        assert final_answer(world, key) == "heard: heard: heard: count"


@in_virtual_time
async def test_beyond_the_depth_the_model_is_told() -> None:
    options = replace(OPTIONS, limits=replace(LIMITS, child_depth=1))
    model = SaidModel({"delegate": spawns("split"), "split": spawns("count")})
    async with family(model, options) as world:
        await runtime(world)
        key = await parent(world)
        await world.until_rest(key)
        assert child(child(key)) not in world.judged()
        assert "2 generations below the topmost thread; 1 are allowed" in final_answer(world, key)


@in_virtual_time
async def test_a_failed_childs_reason_is_the_result() -> None:
    model = SaidModel(ANSWERED | {"count": ModelFailure("no such model", retriable=False)})
    async with family(model) as world:
        await runtime(world)
        key = await parent(world)
        judged = await world.until_rest(key)
        [finished] = judged.applied(ToolCallFinished)
        assert finished.outcome == "failed"
        assert final_answer(world, key) == "heard: The child thread failed: no such model."


# Crashes


class Killing:
    """Kills whatever runtimes there are at the record with this number, and starts two others."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.seen = 0
        self.killed = False
        world.on_judged = self._judged

    def _judged(self, record: Record, verdict: Verdict, state: ThreadState) -> None:
        if self.seen == self._number and not self.killed:
            self.killed = True
            for process in self._world.processes:
                process.crash()
            self._world.background(start(self._world))
        self.seen += 1


async def start(world: World) -> None:
    for name in ("r1", "r2"):
        await RuntimeProcess(world, name).start()


async def _killed_at(number: int, cancels: bool = False) -> int:
    """How many records there were before the end."""
    model = SaidModel({"delegate": spawns("split"), "split": spawns("count")})
    model.slow = {"count": 30.0} if cancels else {}
    async with family(model) as world:
        await start(world)
        killing = Killing(world, number)
        key = await parent(world)
        if cancels:
            await world.until(lambda: model.asked("count"))
            await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        judged = await world.until_rest(key)
        family_of = [key, child(key), child(child(key))]
        await world.until(lambda: all(world.of(each).state.turn is None for each in family_of))
        outcome = "aborted" if cancels else "completed"
        for each in family_of:
            assert [event.outcome for event in world.of(each).applied(TurnEnded)] == [outcome], each
            assert len(world.of(each).applied(TurnStarted)) == 1
        assert set(world.judged()) == set(family_of)
        for each in family_of[:2]:
            [finished] = world.of(each).applied(ToolCallFinished)
            assert finished.outcome == ("cancelled" if cancels else "succeeded")
        if not cancels:
            assert final_answer(world, key) == "heard: heard: heard: count"
        assert not judged.state.calls
        return killing.seen


@in_virtual_time
async def test_a_crash_between_any_two_records_heals() -> None:
    records = await _killed_at(1_000)
    assert records > 20
    for number in range(2, records):
        await _killed_at(number)


@in_virtual_time
async def test_a_crash_between_any_two_records_of_a_cancelled_family_heals() -> None:
    records = await _killed_at(1_000, cancels=True)
    for number in range(2, records):
        await _killed_at(number, cancels=True)


async def _ended_and_killed(world: World, key: ThreadKey) -> None:
    """Its end is in the log and in the views; whoever would tell it is gone."""
    [process] = world.processes
    ended = asyncio.Event()

    def killing(record: Record, verdict: Verdict, state: ThreadState) -> None:
        if record.kind == "turn.ended" and not ended.is_set():
            ended.set()
            process.crash()

    world.on_judged = killing
    await ended.wait()
    await world.until(lambda: world.store.state(child(key)).last_turn == 1)
    await asyncio.sleep(5)
    assert not world.of(key).applied(ToolCallFinished)


@in_virtual_time
async def test_an_end_that_nobody_told_is_looked_up() -> None:
    async with family(SaidModel(ANSWERED)) as world:
        await runtime(world)
        key = await parent(world)
        await _ended_and_killed(world, key)
        process = await runtime(world, "r2")
        await world.until_rest(key)
        assert final_answer(world, key) == "heard: heard: count"
        assert process.runtime._metrics.children_looked_up._value.get() == 1
        assert child(key) not in process.loop.partitions[world.partition_of(child(key))].threads


@in_virtual_time
async def test_what_cannot_be_looked_up_now_is_looked_up_later() -> None:
    async with family(SaidModel(ANSWERED)) as world:
        await runtime(world)
        key = await parent(world)
        await _ended_and_killed(world, key)
        asked = 0
        ends = world.store.find_ends

        async def away(tenant: str, inputs: Mapping[str, str]) -> Mapping[str, ChildEnd]:
            nonlocal asked
            asked += 1
            return {} if asked < 4 else await ends(tenant, inputs)

        world.store.find_ends = away
        began = world.clock.now_ms()
        await runtime(world, "r2")
        await world.until_rest(key)
        assert final_answer(world, key) == "heard: heard: count"
        assert asked == 4 and world.clock.now_ms() - began >= 3_000 * LIMITS.child_look_seconds


def _is_stored(world: World, kind: str) -> bool:
    return any(record.kind == kind for judged in world.judged().values() for record, _, _ in judged.records)


@in_virtual_time
async def test_a_log_that_is_away_delays_the_beginning_and_the_end() -> None:
    model = SaidModel(ANSWERED)
    async with family(model) as world:
        process = await runtime(world)
        key = await parent(world)
        for kind in ("tool_call.dispatched", "turn.ended"):
            await world.until(partial(_is_stored, world, kind), every=0.001)
            world.broker.is_away = True
            await asyncio.sleep(45)
            world.broker.come_back()
        await world.until_rest(key)
        assert final_answer(world, key) == "heard: heard: count"
        assert process.runtime._metrics.append_failures._value.get() > 0
        await world.until(lambda: process.held(child(key)) is None, 60)


@in_virtual_time
async def test_a_beginning_that_comes_after_the_stop_begins_nothing() -> None:
    """A dead owner's first events for the child are still on their way when the next one stops it."""
    async with family(SaidModel(ANSWERED)) as world:
        first = await runtime(world)
        sent: list[Any] = []
        append = first.log.appender.append

        def keeping(topic: str, partition: int, records: Any) -> Any:
            if records[0].key == child(key).to_bytes():
                sent.extend(records)
                return asyncio.get_running_loop().create_future()
            return append(topic, partition, records)

        first.log.appender.append = keeping  # type: ignore[method-assign]  # records for the child are kept back
        key = await parent(world)
        await world.until(lambda: sent)
        first.crash()
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await runtime(world, "r2")
        await world.until_rest(key)
        await world.log.appender.append("thread-events", world.partition_of(child(key)), sent)
        await asyncio.sleep(5)
        born = world.of(child(key))
        assert [v.effect for r, v, _ in born.records[-2:]] == ["superseded", "duplicate"]
        assert born.state.last_turn == 0 and not born.state.queue
        assert [event.outcome for event in world.of(key).applied(ToolCallFinished)] == ["cancelled"]


@in_virtual_time
async def test_a_stop_that_overtook_its_beginning_is_sent_again() -> None:
    """The log refuses the child's first events, and takes those that stop it."""
    model = SaidModel(ANSWERED)
    async with family(model) as world:
        process = await runtime(world)
        append = process.log.appender.append
        begun: list[Any] = []

        def failing(topic: str, partition: int, records: Any) -> Any:
            if records[0].key == child(key).to_bytes() and not begun:
                begun.append(asyncio.get_running_loop().create_future())
                return begun[0]
            return append(topic, partition, records)

        process.log.appender.append = failing  # type: ignore[method-assign]  # the first append to the child fails, late
        key = await parent(world)
        await world.until(lambda: begun)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await world.until(lambda: child(key) in world.judged())
        begun[0].set_exception(LogUnavailableError("the test lost it"))
        await world.until_rest(key)
        assert world.of(child(key)).state.last_turn == 0 and not world.of(child(key)).state.queue
        assert not model.asked("count")


@in_virtual_time
async def test_closing_a_parent_stops_its_children_first() -> None:
    model = SaidModel(ANSWERED)
    model.slow["count"] = 300
    async with family(model) as world:
        await runtime(world)
        key = await parent(world)
        await world.until(lambda: model.asked("count"))
        await world.command(key, ThreadCloseRequested(), "close")
        await world.until(lambda: world.of(key).state.status == "closed", 30)
        born = world.of(child(key))
        assert [event.outcome for event in born.applied(TurnEnded)] == ["aborted"]
        assert born.state.status == "active" and len(world.of(key).applied(ThreadClosed)) == 1


@in_virtual_time
async def test_a_child_that_a_person_closes_is_told_as_cancelled() -> None:
    model = SaidModel(ANSWERED)
    model.slow["count"] = 300
    async with family(model) as world:
        await runtime(world)
        key = await parent(world)
        await world.until(lambda: model.asked("count"))
        await world.command(child(key), ThreadCloseRequested(), "close")
        judged = await world.until_rest(key)
        assert [event.outcome for event in judged.applied(ToolCallFinished)] == ["cancelled"]
        assert final_answer(world, key) == "heard: The child thread was cancelled: cancelled: close."
