"""Asking the downstream of unknown reconcilable calls: the whole executor, on a simulated log, in virtual time."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import pytest
import structlog

from schemas.config import Config
from schemas.events import (
    ThreadCloseRequested,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallResolved,
    TurnCancelRequested,
    TurnEnded,
)
from schemas.ids import ThreadKey, idempotency_key
from services.tool_executor.offering.hooks import HookFailedError, Question
from tests.support.simulated.chosen_faults import ChosenFaults
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds import executor as executor_world
from tests.support.worlds.executor import LEASE, P0, begin, executor, runs, status_is, statuses
from tests.support.worlds.services import ExecutorProcess, Judged, World

TIMEOUT = 30
"""Of the ledger's tools."""
GRACE = 15
OVER = LEASE + TIMEOUT + GRACE
"""Seconds from the claim until `not_done` is believed."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Tracebacks of hooks cost more time than the tests."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


class Downstream:
    """Knows what happened from the ledger; or says what the test wants, or does what hooks do when they are broken."""

    def __init__(self, world: World, *says: object) -> None:
        self.world = world
        self.says = list(says)
        """The last is said again and again; a callable is called, an exception raised."""
        self.asked: list[tuple[float, Question]] = []

    async def ask(self, question: Question, /) -> object:
        self.asked.append((asyncio.get_running_loop().time(), question))
        if not self.says:
            done = self.world.ledger.effects()[f"{question.tenant}/{question.thread}", question.call]
            return {"status": "done", "result": f"{question.call} was done"} if done else {"status": "not_done"}
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, BaseException):
            raise said
        return await said() if callable(said) else said


def world_of(seconds: float = 20, **fields: Any) -> AbstractAsyncContextManager[World]:
    return executor_world.world_of(("reconcilable", {"seconds": seconds}), **fields)


async def asking(world: World, downstream: Downstream | None, name: str = "e2", **fields: Any) -> ExecutorProcess:
    process = await executor(world, name, **fields)
    process.executor.reconciling.hooks = {} if downstream is None else {"reconcilable": downstream}
    return process


async def begun_and_dead(world: World, after: float = 1.0, config: Config | None = None) -> ThreadKey:
    """A call whose executor died so many seconds after it began: with its effect, or before it."""
    first = await executor(world, "e1")
    key = await begin(world, config=config)
    await runs(world)
    await asyncio.sleep(after)
    first.crash()
    return key


def resolutions(judged: Judged) -> list[ToolCallResolved]:
    return judged.applied(ToolCallResolved)


@in_virtual_time
async def test_done_settles_the_call_at_once_with_its_result() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        assert world.ledger.effects() == {("acme/t", "1.1.0"): 1}
        downstream = Downstream(world)
        await asking(world, downstream)
        judged = await world.until_rest(key)
        (resolved,) = resolutions(judged)
        assert (resolved.decision, resolved.note) == ("succeeded", "the downstream says that it was done")
        assert resolved.result["content"][0]["text"] == "1.1.0 was done"
        ((_, question),) = downstream.asked
        lost_ms, resolved_ms = (
            next(r.time_ms for r, _, _ in judged.records if r.kind == f"tool_call.{kind}")
            for kind in ("lost", "resolved")
        )
        assert resolved_ms - lost_ms < 1_000
        dispatched = judged.applied(ToolCallDispatched)
        assert question.idempotency_key == dispatched[0].idempotency_key == idempotency_key(key, "1.1.0")
        (record,) = [r for r, verdict, _ in judged.records if r.data is resolved and verdict.effect == "applied"]
        assert record.actor == "service:tool-executor"
        assert judged.state.last_outcome == "completed"
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_not_done_is_believed_only_after_the_calls_own_deadline_and_then_it_runs_again() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world)
        assert not world.ledger.runs[0].effects
        downstream = Downstream(world)
        await asking(world, downstream)
        judged = await world.until_rest(key)
        (resolved,) = resolutions(judged)
        assert resolved.decision == "again"
        claimed_ms = next(r.time_ms for r, _, _ in judged.records if r.kind == "tool_call.started")
        resolved_ms = next(r.time_ms for r, _, _ in judged.records if r.kind == "tool_call.resolved")
        assert OVER <= (resolved_ms - claimed_ms) / 1000 < OVER + 1
        assert len(downstream.asked) > 2, "asked meanwhile, too: it may be done after all"
        assert [event.attempt for event in judged.applied(ToolCallDispatched)] == [1, 2]
        assert world.ledger.effects() == {("acme/t", "1.1.0"): 1}


@in_virtual_time
async def test_a_slow_answer_is_of_the_time_when_it_was_asked_for() -> None:
    """It looked before the deadline, when there was no charge yet, and says so after it."""
    async with world_of() as world:
        key = await begun_and_dead(world)

        async def slow() -> object:
            await asyncio.sleep(25)
            return {"status": "not_done"}

        downstream = Downstream(world, slow, slow, {"status": "done"})
        await asking(world, downstream)
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]
        _, (second_at, _), (third_at, _) = downstream.asked
        assert second_at < OVER < third_at


@in_virtual_time
async def test_an_effect_that_comes_late_is_found_before_the_deadline() -> None:
    """The executor that was taken for lost was merely cut off from the log, and did it."""
    async with world_of() as world:
        key = await begun_and_dead(world)
        downstream = Downstream(world, {"status": "not_done"}, {"status": "not_done"}, {"status": "done"})
        await asking(world, downstream)
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_a_late_end_settles_it_while_the_downstream_is_asked() -> None:
    """Then the answer changes nothing."""
    async with world_of() as world:
        release = asyncio.Event()

        async def slowly() -> object:
            await release.wait()
            return {"status": "done", "result": "too late"}

        process = await executor(world, "e1")
        process.executor.appends.progress = lambda *_: None  # type: ignore[method-assign]  # its heartbeats are lost
        downstream = Downstream(world, slowly)
        await asking(world, downstream, "watcher", group="zombies")
        key = await begin(world)
        await status_is(world, key, "unknown")
        judged = await world.until_rest(key)
        release.set()
        await asyncio.sleep(5)
        assert statuses(judged)[-3:] == ["running", "unknown", "succeeded"]
        assert len(downstream.asked) == 1
        assert [event.outcome for event in judged.applied(ToolCallFinished)] == ["succeeded"]
        assert resolutions(world.of(key)) == []


@in_virtual_time
async def test_an_executor_does_not_ask_while_its_own_attempt_runs() -> None:
    async with world_of() as world:
        process = await executor(world, "e1")
        downstream = Downstream(world)
        process.executor.reconciling.hooks = {"reconcilable": downstream}
        process.executor.appends.progress = lambda *_: None  # type: ignore[method-assign]  # its heartbeats are lost
        await executor(world, "watcher", group="zombies")
        key = await begin(world)
        await status_is(world, key, "unknown")
        await world.until_rest(key)
        assert downstream.asked == []


@in_virtual_time
async def test_it_asks_once_its_own_attempt_was_lost() -> None:
    """Such as one whose MCP server died midway."""
    async with world_of() as world:
        process = await executor(world, "e1")
        downstream = Downstream(world)
        process.executor.reconciling.hooks = {"reconcilable": downstream}
        key = await begin(world, config=Config(model="m", on_unknown="wait"))
        await runs(world)
        await asyncio.sleep(12)
        for run in process.executor.runs.by_thread[key].values():
            run.cancelled.set()
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]


@in_virtual_time
async def test_two_executors_that_ask_at_once_settle_it_once() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        downstream = Downstream(world)
        await asking(world, downstream, "e2")
        await asking(world, downstream, "e3", group="zombies")
        judged = await world.until_rest(key)
        await asyncio.sleep(60)
        assert len(downstream.asked) == 2
        records = [(r.id, verdict.effect) for r, verdict, _ in world.of(key).records if r.kind == "tool_call.resolved"]
        assert len({name for name, _ in records}) == 1, "the id is derived"
        assert [effect == "applied" for _, effect in records] == [True, False]
        assert judged.state.last_outcome == "completed"


# Turns that end meanwhile


@pytest.mark.parametrize("done", [True, False])
@in_virtual_time
async def test_after_a_cancel_it_is_settled_all_the_same_but_does_not_run_again(done: bool) -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12 if done else 1)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await asking(world, Downstream(world))
        judged = await world.until_rest(key)
        (ended,) = judged.applied(TurnEnded)
        assert ended.outcome == "aborted"
        await world.until(lambda: resolutions(world.of(key)), 120)
        (resolved,) = resolutions(world.of(key))
        assert resolved.decision == ("succeeded" if done else "failed")
        assert world.of(key).state.calls == {} or statuses(world.of(key))[-1] == resolved.decision
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_an_again_that_the_turns_end_overtakes_is_followed_by_failed() -> None:
    """The fold refuses the first; the call is asked about again."""
    async with world_of() as world:
        key = await begun_and_dead(world)
        downstream = Downstream(world)
        process = await asking(world, downstream)
        append = process.log.appender.append
        overtaken: list[str] = []

        def after_a_cancel(topic: str, partition: int, records: Any) -> Any:
            if not overtaken and b"tool_call.resolved" in dict(records[0].headers)["ce_type"]:
                overtaken.append("resolved")

                async def late() -> Any:
                    await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
                    return await append(topic, partition, records)

                return asyncio.ensure_future(late())
            return append(topic, partition, records)

        process.log.appender.append = after_a_cancel  # type: ignore[method-assign]  # passed on, a little later
        await world.until(lambda: resolutions(world.of(key)), 120)
        judged = world.of(key)
        said = [(r.data.decision, v.effect) for r, v, _ in judged.records if r.kind == "tool_call.resolved"]
        assert said == [("again", "rejected"), ("failed", "applied")]
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_a_thread_that_closed_meanwhile_still_learns_what_happened() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        await world.command(key, ThreadCloseRequested(), "close")
        await asking(world, Downstream(world))
        await world.until(lambda: resolutions(world.of(key)), 120)
        assert [resolved.decision for resolved in resolutions(world.of(key))] == ["succeeded"]


# Hooks that do not answer


async def hang() -> object:
    await asyncio.sleep(10_000)
    raise AssertionError


@pytest.mark.parametrize(
    ("broken", "note"),
    [
        (hang, "no answer within 30 s"),
        (HookFailedError("exit code 3"), "exit code 3"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
        ("garbage", "no JSON object"),
        ({"status": "perhaps"}, "'perhaps'"),
        ({"status": "unknown", "note": "the ledger is closed"}, "the ledger is closed"),
    ],
)
@in_virtual_time
async def test_a_hook_that_says_nothing_is_asked_again_and_the_call_left_to_people(broken: object, note: str) -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        downstream = Downstream(world, broken)
        process = await asking(world, downstream)
        await asyncio.sleep(1_500)
        assert len(downstream.asked) == 10
        times = [at for at, _ in downstream.asked]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert all(a <= b + 0.1 for a, b in pairwise(pauses))
        assert statuses(world.of(key))[-1] == "unknown"
        held = process.held(key)
        assert held.quarantined is None
        assert process.executor.reconciling.slots._value == 8, "no place is kept"
        metrics = process.executor.metrics
        assert metrics.left_to_people._value.get() == 1
        assert metrics.reconciled.labels("unknown")._value.get() == 10
        await world.command(key, ToolCallResolved(call="1.1.0", attempt=1, decision="succeeded"), "a person")
        await world.until_rest(key)
        assert held.work.reconciliations == {}


@in_virtual_time
async def test_a_hook_that_recovers_is_believed() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        downstream = Downstream(world, HookFailedError("away"), hang, "garbage", {"status": "done"})
        await asking(world, downstream)
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]
        assert len(downstream.asked) == 4


@in_virtual_time
async def test_without_a_hook_it_waits_for_a_person() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        process = await asking(world, None)
        await asyncio.sleep(600)
        assert statuses(world.of(key))[-1] == "unknown"
        assert process.executor.metrics.left_to_people._value.get() == 1


@in_virtual_time
async def test_only_so_many_are_asked_about_at_once() -> None:
    async with world_of() as world:
        first = await executor(world, "e1")
        keys = [await begin(world, f"t{number}") for number in range(12)]
        await runs(world, 12)
        await asyncio.sleep(12)
        first.crash()
        under_way: list[int] = [0]
        most: list[int] = [0]

        async def counted() -> object:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            await asyncio.sleep(3)
            under_way[0] -= 1
            return {"status": "done"}

        await asking(world, Downstream(world, counted))
        for key in keys:
            await world.until_rest(key)
        assert most == [8]


@pytest.mark.parametrize("why", ["a person settles it", "the partition goes"])
@in_virtual_time
async def test_what_no_longer_matters_when_its_turn_comes_is_not_asked(why: str) -> None:
    async with world_of() as world:
        key = await begun_and_dead(world)
        downstream = Downstream(world)
        process = await asking(world, downstream)
        places = process.executor.reconciling.slots
        for _ in range(8):
            await places.acquire()
        await status_is(world, key, "unknown")
        await asyncio.sleep(1)
        if why == "the partition goes":
            await process.loop.revoked(P0)
        else:
            await world.command(key, ToolCallResolved(call="1.1.0", attempt=1, decision="failed"), "resolve")
            await world.until_rest(key)
        for _ in range(8):
            places.release()
        await asyncio.sleep(5)
        assert downstream.asked == []


# Partitions and processes


@in_virtual_time
async def test_a_partition_that_moves_while_it_asks_is_asked_for_by_its_new_owner() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        release = asyncio.Event()

        async def slowly() -> object:
            await release.wait()
            return {"status": "done", "result": "from the old owner"}

        old = Downstream(world, slowly)
        process = await asking(world, old)
        await world.until(lambda: old.asked, 60)
        await process.loop.revoked(P0)
        release.set()
        await asyncio.sleep(5)
        assert resolutions(world.of(key)) == [], "the old owner's answer is dropped"
        offsets = await process.loop.assigned(P0)
        process.reader.seek(*next(iter(offsets.items())))
        old.says = [{"status": "done", "result": "from the new one"}]
        judged = await world.until_rest(key)
        (resolved,) = resolutions(judged)
        assert resolved.result["content"][0]["text"] == "from the new one"


@in_virtual_time
async def test_a_process_that_dies_between_question_and_answer_is_followed_by_one_that_asks_again() -> None:
    async with world_of() as world:
        key = await begun_and_dead(world, after=12)
        downstream = Downstream(world, hang)
        dying = await asking(world, downstream, "e2")
        await world.until(lambda: downstream.asked, 60)
        dying.crash()
        downstream.says = [{"status": "done"}]
        await asking(world, downstream, "e3")
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]
        assert len(downstream.asked) == 2


@pytest.mark.parametrize("fate", ["request_lost", "ack_lost"])
@in_virtual_time
async def test_a_resolution_whose_append_fails_is_said_again(fate: Any) -> None:
    faults = ChosenFaults(fate)
    async with world_of(faults=faults) as world:
        key = await begun_and_dead(world, after=12)
        downstream = Downstream(world)
        await asking(world, downstream)
        faults.kinds = {"tool_call.resolved": 40}
        judged = await world.until_rest(key)
        assert [resolved.decision for resolved in resolutions(judged)] == ["succeeded"]


@in_virtual_time
async def test_a_thread_with_such_a_call_stays_in_memory_and_is_asked_about_after_a_restart() -> None:
    """Its turn is over, and no record comes any more."""
    async with world_of() as world:
        key = await begun_and_dead(world, after=12, config=Config(model="m", on_unknown="end"))
        lost_to = await asking(world, None)
        await world.until_rest(key)
        await asyncio.sleep(30)
        assert lost_to.held(key) is not None
        await lost_to.stop()
        downstream = Downstream(world)
        await asking(world, downstream, "e3")
        await world.until(lambda: resolutions(world.of(key)), 60)
        assert len(downstream.asked) == 1


@in_virtual_time
async def test_each_attempt_that_is_lost_is_asked_about() -> None:
    """The second one is cut off after its effect."""
    async with world_of() as world:
        key = await begun_and_dead(world)
        downstream = Downstream(world)
        second = await asking(world, downstream)
        await world.until(lambda: world.ledger.effects()["acme/t", "1.1.0"], 200)
        second.crash()
        await asking(world, downstream, "e3")
        judged = await world.until_rest(key)
        assert [(event.attempt, event.decision) for event in resolutions(judged)] == [(1, "again"), (2, "succeeded")]
        assert world.ledger.effects() == {("acme/t", "1.1.0"): 1}
