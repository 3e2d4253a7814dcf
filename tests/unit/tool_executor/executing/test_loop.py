"""The executor's loop on a simulated log: claims, leases, rebalances, kills, limits. Tools write to a ledger."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import JsonValue

from schemas.codec import decode
from schemas.config import Config
from schemas.events import (
    EffectClass,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
)
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.other_topics.progress import Heartbeat, Quarantine, ToolOutput, decode_progress
from schemas.topics import THREAD_PROGRESS
from services.chassis.log.port import Outgoing
from services.tool_executor.executing import own_claims
from services.tool_executor.tools import Emit, ToolEnd, ToolRequest
from tests.support.simulated.chosen_faults import ChosenFaults
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.executor import LEASE, P0, begin, executor, runs, status_is, statuses, world_of
from tests.support.worlds.services import World, WorldOptions


def progress_of(world: World, kind: type) -> list[Any]:
    records = world.broker.records(THREAD_PROGRESS.name, 0)
    return [each for each in [decode_progress(record.value) for record in records] if isinstance(each, kind)]


# Claims


@in_virtual_time
async def test_what_has_effects_runs_once_its_claim_is_read_back() -> None:
    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        seen: list[list[str]] = []
        run = process.executor.tool_runs.tools.run

        async def watched(*arguments: Any) -> ToolEnd:
            seen.append(world.of(key).kinds()[-1:])
            return await run(*arguments)

        process.executor.tool_runs.tools.run = watched  # type: ignore[method-assign]  # watched, and passed on
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        assert seen == [["tool_call.started"]]
        (finished,) = judged.applied(ToolCallFinished)
        assert (finished.outcome, finished.result["content"][0]["text"]) == ("succeeded", "1.1.0 done")
        assert world.ledger.effects() == {("acme/t", "1.1.0"): 1}
        assert process.executor.runs.by_thread == {} and process.executor.slots.taken == 0


@in_virtual_time
async def test_what_is_pure_runs_at_once_and_says_both_in_one_batch() -> None:
    """And when its own claim comes back it starts nothing again."""
    async with world_of(("pure", {"seconds": 1})) as world:
        process = await executor(world)
        batches: list[list[str]] = []
        append = process.log.appender.append

        def noted(topic: str, partition: int, records: Sequence[Outgoing]) -> Any:
            batches.append([decode(r.key, r.headers, r.value, 0).kind for r in records])  # type: ignore[union-attr]
            return append(topic, partition, records)

        process.log.appender.append = noted  # type: ignore[method-assign]  # noted, and passed on
        key = await begin(world)
        await world.until_rest(key)
        assert batches == [["tool_call.started", "tool_call.finished"]]
        assert len(world.ledger.runs) == 1
        await asyncio.sleep(30)
        assert len(world.ledger.runs) == 1


@pytest.mark.parametrize("effect", ["idempotent", "reconcilable", "unsafe"])
@in_virtual_time
async def test_of_two_executors_one_runs_it(effect: EffectClass) -> None:
    async with world_of((effect, {"seconds": 1})) as world:
        a = await executor(world, "a")
        b = await executor(world, "b", group="zombies")
        key = await begin(world)
        judged = await world.until_rest(key)
        assert len(world.ledger.runs) == 1
        assert len([1 for r, _, _ in judged.records if r.kind == "tool_call.started"]) == 2
        assert a.executor.runs.by_thread == {} and b.executor.runs.by_thread == {}
        assert a.executor.slots.taken == b.executor.slots.taken == 0


@in_virtual_time
async def test_a_claim_that_is_read_back_too_late_is_given_back() -> None:
    """Its lease is counted from its own append: others may have called it lost."""
    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        poll = process.reader.poll

        async def slow(timeout_ms: int) -> Any:
            polled = await poll(timeout_ms)
            kinds = [decode(r.key, r.headers, r.value, 0).kind for _, records in polled for r in records]  # type: ignore[union-attr]
            if "tool_call.started" in kinds:
                process.reader.poll = poll  # type: ignore[method-assign]
                await asyncio.sleep(LEASE + 1)
            return polled

        process.reader.poll = slow  # type: ignore[method-assign]  # once
        key = await begin(world)
        judged = await world.until_rest(key)
        outcomes = [(event.attempt, event.outcome) for event in judged.applied(ToolCallFinished)]
        assert outcomes == [(1, "not_started"), (2, "succeeded")]
        assert world.ledger.effects() == {("acme/t", "1.1.0"): 1}


@in_virtual_time
async def test_a_claim_whose_append_failed_is_tried_again_with_the_lease_of_the_first() -> None:
    faults = ChosenFaults()
    async with world_of(("unsafe", {}), faults=faults) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.started": 31}
        key = await begin(world)
        await asyncio.sleep(29)
        assert process.executor.slots.taken == 1
        judged = await world.until_rest(key)
        outcomes = [(event.attempt, event.outcome) for event in judged.applied(ToolCallFinished)]
        assert outcomes == [(1, "not_started"), (2, "succeeded")]
        assert process.executor.slots.taken == 0


@in_virtual_time
async def test_a_claim_that_this_process_does_not_know_is_denied() -> None:
    """Its append was reported as failed after the call was given up on, and was stored all the same."""
    async with world_of(("unsafe", {})) as world:
        process = await executor(world, group="other")
        process.executor.own_claims.stopping = True
        key = await begin(world)
        await status_is(world, key, "dispatched")
        claim = ToolCallStarted(call="1.1.0", attempt=1, executor=process.owner, lease_seconds=LEASE)
        await world.command(key, claim, "claim", actor="service:tool-executor")
        process.executor.own_claims.stopping = False
        judged = await world.until_rest(key)
        outcomes = [(event.attempt, event.outcome) for event in judged.applied(ToolCallFinished)]
        assert outcomes == [(1, "not_started"), (2, "succeeded")]
        assert len(world.ledger.runs) == 1


# Ends


@in_virtual_time
async def test_an_end_is_said_until_it_is_acknowledged() -> None:
    faults = ChosenFaults()
    async with world_of(("unsafe", {}), faults=faults) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.finished": 50}
        key = await begin(world)
        judged = await world.until_rest(key)
        assert judged.state.last_outcome == "completed"
        assert len(world.ledger.runs) == 1
        assert process.executor.runs.by_thread == {}


class Tool:
    def __init__(self, end: ToolEnd) -> None:
        self._end = end

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        return self._end


@pytest.mark.parametrize(
    ("end", "statuses_then"),
    [
        (ToolEnd("failed", "no"), ["failed"]),
        (ToolEnd("timed_out", None), ["timed_out"]),
        (ToolEnd("lost", None, evidence="the connection broke"), ["unknown"]),
        (ToolEnd("cancelled", None), ["unknown"]),
        (ToolEnd("not_started", None), ["repeatable", "dispatched"]),
    ],
)
@in_virtual_time
async def test_how_a_tool_ended_is_how_the_call_ends(end: ToolEnd, statuses_then: list[str]) -> None:
    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        process.executor.tool_runs.tools = Tool(end)
        key = await begin(world)
        await world.until(lambda: "running" in statuses(world.of(key)), 60)
        await asyncio.sleep(1)
        seen = statuses(world.of(key))
        after = seen[seen.index("running") + 1 :]
        assert after[: len(statuses_then)] == statuses_then
        assert process.executor.slots.taken == 0


@in_virtual_time
@pytest.mark.parametrize("of", ["text", "artifacts"])
async def test_a_result_over_the_record_limit_is_replaced_by_the_reason(of: str) -> None:
    named: dict[str, JsonValue] = {"sha256": "a" * 64, "size": 1, "media_type": "image/png", "name": "n" * 500}
    end = ToolEnd("succeeded", "x" * 2_000_000 if of == "text" else "x", artifacts=[named] * 2_000 * (of != "text"))
    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        process.executor.tool_runs.tools = Tool(end)
        key = await begin(world)
        judged = await world.until_rest(key)
        (finished,) = judged.applied(ToolCallFinished)
        assert finished.outcome == "succeeded"
        assert "record limit" in str(finished.result)


@in_virtual_time
async def test_what_a_tool_says_of_files_is_no_reason_to_lose_its_end() -> None:
    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        process.executor.tool_runs.tools = Tool(ToolEnd("succeeded", "ok", changes=[{"path": 7, "nonsense": True}]))
        key = await begin(world)
        judged = await world.until_rest(key)
        (finished,) = judged.applied(ToolCallFinished)
        assert (finished.outcome, finished.changes) == ("succeeded", ())


@in_virtual_time
async def test_what_the_log_cannot_carry_is_replaced_in_results_and_output() -> None:
    class Binary:
        async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
            emit("a\x00")
            emit("\ud800")
            return ToolEnd("succeeded", {"n": 2**60, "text": "\x00"})

    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        process.executor.tool_runs.tools = Binary()
        key = await begin(world)
        judged = await world.until_rest(key)
        (finished,) = judged.applied(ToolCallFinished)
        assert finished.result == {"n": str(2**60), "text": "\u2400"}
        assert [output.text for output in progress_of(world, ToolOutput)] == ["a\u2400\ufffd"]


# Leases


@in_virtual_time
async def test_it_beats_every_third_of_the_lease_while_the_call_runs() -> None:
    async with world_of(("unsafe", {"seconds": 20})) as world:
        await executor(world)
        watcher = await executor(world, "watcher", group="zombies")
        key = await begin(world)
        judged = await world.until_rest(key)
        beats = progress_of(world, Heartbeat)
        assert 8 <= len(beats) <= 10
        assert {beat.claim for beat in beats} == {
            r.id for r, v, _ in judged.records if r.kind == "tool_call.started" and v.effect == "applied"
        }
        assert judged.applied(ToolCallLost) == []
        await asyncio.sleep(10)
        assert watcher.executor.foreign_claims.leases._watches == {}
        assert len(progress_of(world, Heartbeat)) == len(beats)


@in_virtual_time
async def test_a_dead_executors_unsafe_call_becomes_unknown_after_its_lease() -> None:
    async with world_of(("unsafe", {"seconds": 20})) as world:
        first = await executor(world)
        key = await begin(world)
        await runs(world)
        first.crash()
        await executor(world, "e2")
        await status_is(world, key, "unknown")
        (lost,) = world.of(key).applied(ToolCallLost)
        assert first.owner in lost.evidence
        await asyncio.sleep(60)
        assert len(world.ledger.runs) == 1, "never a blind retry"
        await world.command(key, ToolCallResolved(call="1.1.0", attempt=1, decision="failed"), "resolve")
        await world.until_rest(key)


@in_virtual_time
async def test_a_restarted_executor_knows_its_claims_from_its_former_selfs() -> None:
    async with world_of(("unsafe", {"seconds": 20})) as world:
        first = await executor(world, instance_id="e1")
        key = await begin(world)
        await runs(world)
        first.crash()
        await executor(world, instance_id="e1")
        await status_is(world, key, "unknown", seconds=LEASE + 5)
        assert len(world.ledger.runs) == 1


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
@in_virtual_time
async def test_a_dead_executors_repeatable_call_runs_again(effect: EffectClass) -> None:
    async with world_of((effect, {"seconds": 20})) as world:
        first = await executor(world)
        key = await begin(world)
        await runs(world)
        first.crash()
        await executor(world, "e2")
        judged = await world.until_rest(key)
        assert len(world.ledger.runs) == 2
        assert len({event.idempotency_key for event in judged.applied(ToolCallDispatched)}) == 1
        assert judged.state.last_outcome == "completed"


@in_virtual_time
async def test_attempts_are_limited() -> None:
    """An idempotent call that takes its executor down each time: after the last attempt a person has to look."""
    async with world_of(("idempotent", {"seconds": 20})) as world:
        key = ThreadKey(TenantId("acme"), ThreadId("t"))
        for number in (1, 2, 3):
            process = await executor(world, f"e{number}")
            if number == 1:
                await begin(world)
            await runs(world, number)
            process.crash()
        await executor(world, "e4")
        await status_is(world, key, "unknown")
        await asyncio.sleep(600)
        assert statuses(world.of(key))[-1] == "unknown"
        assert len(world.ledger.runs) == 3
        assert [event.last for event in world.of(key).applied(ToolCallDispatched)] == [False, False, True]
        await world.command(key, ToolCallResolved(call="1.1.0", attempt=3, decision="failed"), "resolve")
        await world.until_rest(key)


@in_virtual_time
async def test_a_call_taken_for_lost_that_ends_after_all_settles_the_unknown() -> None:
    """Its heartbeats were lost, not its executor: its end is the proof."""
    async with world_of(("unsafe", {"seconds": 20})) as world:
        process = await executor(world)
        process.executor.appends.progress = lambda *_: None  # type: ignore[method-assign]  # nobody hears it
        await executor(world, "watcher", group="zombies")
        key = await begin(world)
        await status_is(world, key, "unknown")
        judged = await world.until_rest(key)
        assert statuses(judged)[-3:] == ["running", "unknown", "succeeded"]
        assert len(world.ledger.runs) == 1


# Cancelling


@in_virtual_time
async def test_a_cancel_kills_what_runs() -> None:
    async with world_of(("unsafe", {"seconds": 20}), ("pure", {"seconds": 20})) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world, 2)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        judged = await world.until_rest(key, seconds=5)
        assert [run.ended for run in world.ledger.runs] == ["cancelled"] * 2
        assert {name: call.status for name, call in judged.state.calls.items()} == {"1.1.0": "unknown"}
        assert judged.state.last_outcome == "aborted"
        await asyncio.sleep(3)
        assert process.executor.slots.taken == 0 and process.executor.runs.by_thread == {}


# Rebalances


@in_virtual_time
async def test_a_lost_partition_is_read_on_for_the_calls_that_run() -> None:
    async with world_of(("unsafe", {"seconds": 10})) as world:
        first = await executor(world, "b")
        key = await begin(world)
        await runs(world)
        await executor(world, "a")
        await world.until(lambda: not first.loop.partitions, 20)
        judged = await world.until_rest(key)
        assert [run.ended for run in world.ledger.runs] == ["succeeded"]
        assert judged.applied(ToolCallLost) == []
        await asyncio.sleep(2)
        assert first.executor.runs.by_thread == {} and first.executor.orphaned_calls.followed == set()
        assert len(first.log._readers) == len([1 for reader in first.log._readers if reader._stopped]) + 1


@in_virtual_time
async def test_a_cancel_reaches_a_call_of_a_lost_partition() -> None:
    async with world_of(("unsafe", {"seconds": 60})) as world:
        first = await executor(world, "b")
        key = await begin(world)
        await runs(world)
        await executor(world, "a")
        await world.until(lambda: not first.loop.partitions, 20)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        await world.until_rest(key, seconds=10)
        assert [run.ended for run in world.ledger.runs] == ["cancelled"]


@pytest.mark.parametrize("seconds_away", [0.0, 0.2, 3.0])
@in_virtual_time
async def test_a_partition_that_goes_and_comes_back_finds_its_calls_running(seconds_away: float) -> None:
    """Nothing is denied, claimed or run a second time."""
    async with world_of(("unsafe", {"seconds": 10})) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world)
        await process.loop.revoked(P0)
        await asyncio.sleep(seconds_away)
        offsets = await process.loop.assigned(P0)
        process.reader.seek(*next(iter(offsets.items())))
        judged = await world.until_rest(key)
        assert [run.ended for run in world.ledger.runs] == ["succeeded"]
        assert [event.outcome for event in judged.applied(ToolCallFinished)] == ["succeeded"]
        await asyncio.sleep(2)
        assert process.executor.runs.by_thread == {} and process.executor.orphaned_calls.followed == set()


@in_virtual_time
async def test_a_claim_under_way_while_its_partition_goes_is_read_back_and_run() -> None:
    """Else nobody would run it: its lease would pass, and it would be unknown without a crash."""
    faults = ChosenFaults()
    async with world_of(("unsafe", {}), faults=faults) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.started": 2}
        key = await begin(world)
        await world.until(lambda: process.executor.slots.taken == 1, 20, every=0.01)
        await process.loop.revoked(P0)
        judged = await world.until_rest(key)
        assert len(world.ledger.runs) == 1
        assert judged.applied(ToolCallLost) == []
        await asyncio.sleep(2)
        assert process.executor.slots.taken == 0 and process.executor.runs.by_thread == {}


@in_virtual_time
async def test_a_claim_that_fails_after_its_partition_went_takes_no_place() -> None:
    faults = ChosenFaults()
    async with world_of(("unsafe", {}), faults=faults) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.started": 100}
        await begin(world)
        await world.until(lambda: process.executor.slots.taken == 1, 20, every=0.01)
        await process.loop.revoked(P0)
        await asyncio.sleep(40)
        assert process.executor.slots.taken == 0 and process.executor.runs.by_thread == {}


# Limits


@pytest.mark.parametrize(
    ("options", "most"),
    [({"calls_max": 2}, 2), ({"calls_per_tenant_max": 1}, 1), ({"calls_per_tool_max": 3}, 3), ({}, 6)],
)
@in_virtual_time
async def test_beyond_its_limits_it_leaves_calls_dispatched(options: dict[str, int], most: int) -> None:
    async with world_of(("pure", {"seconds": 5}), options=WorldOptions(**options)) as world:
        process = await executor(world)
        keys = [await begin(world, f"t{number}") for number in range(6)]
        await asyncio.sleep(1)
        assert len(world.ledger.runs) == most
        assert len(process.executor.waiting.threads) == 6 - most
        for key in keys:
            await world.until_rest(key)
        assert len(world.ledger.runs) == 6
        assert process.executor.waiting.threads == {} and process.executor.slots.taken == 0


@in_virtual_time
async def test_a_thread_that_waits_for_a_place_holds_back_nothing_else() -> None:
    options = WorldOptions(calls_per_tool_max=1)
    async with world_of(("pure", {"seconds": 5}), ("idempotent", {"seconds": 1}), options=options) as world:
        await executor(world)
        keys = [await begin(world, f"t{number}") for number in range(3)]
        for key in keys:
            await world.until_rest(key, seconds=60)
        assert len(world.ledger.runs) == 6


# Draining


@in_virtual_time
async def test_draining_lets_running_calls_end_and_claims_nothing_more() -> None:
    options = WorldOptions(drain_seconds=10)
    async with world_of(("unsafe", {"seconds": 5}), ("unsafe", {"seconds": 5}), options=options) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world)
        await process.stop()
        assert [run.ended for run in world.ledger.runs] == ["succeeded"]
        await asyncio.sleep(5)
        assert world.of(key).state.calls["1.1.1"].status == "dispatched"
        await executor(world, "e2")
        await world.until_rest(key)
        assert world.of(key).applied(ToolCallLost) == []


@pytest.mark.parametrize(
    ("effect", "status"), [("unsafe", "unknown"), ("idempotent", "dispatched"), ("pure", "dispatched")]
)
@in_virtual_time
async def test_what_still_runs_after_the_drain_is_killed_and_lost(effect: EffectClass, status: str) -> None:
    async with world_of((effect, {"seconds": 500})) as world:
        process = await executor(world)
        key = await begin(world)
        await runs(world)
        before = asyncio.get_running_loop().time()
        await process.stop()
        assert asyncio.get_running_loop().time() - before < 5
        await asyncio.sleep(1)
        assert world.of(key).state.calls["1.1.0"].status == status
        assert world.ledger.runs[0].ended == "cancelled"


@in_virtual_time
async def test_a_claim_that_is_not_read_back_until_the_drain_is_over_is_given_back() -> None:
    async with world_of(("unsafe", {}), options=WorldOptions(drain_seconds=1)) as world:
        process = await executor(world)
        poll = process.reader.poll

        async def deaf(timeout_ms: int) -> Any:
            polled = await poll(timeout_ms)
            if process.executor.slots.taken:
                await asyncio.sleep(3600)
            return polled

        process.reader.poll = deaf  # type: ignore[method-assign]  # it never reads its claim back
        key = await begin(world)
        await world.until(lambda: statuses(world.of(key))[-1:] == ["running"], 60, every=0.01)
        await process.stop()
        assert process.executor.slots.taken == 0
        await executor(world, "other")
        judged = await world.until_rest(key)
        assert "unknown" not in statuses(judged)
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_a_claim_read_back_after_the_drain_is_given_back() -> None:
    faults = ChosenFaults()
    async with world_of(("unsafe", {}), faults=faults, options=WorldOptions(drain_seconds=1)) as world:
        process = await executor(world)
        faults.kinds = {"tool_call.started": 2}
        key = await begin(world)
        await world.until(lambda: process.executor.slots.taken == 1, 20, every=0.01)
        await process.stop()
        assert world.ledger.runs == []
        await executor(world, "e2")
        judged = await world.until_rest(key)
        assert judged.applied(ToolCallLost) == []
        assert len(world.ledger.runs) == 1


@in_virtual_time
async def test_a_tool_that_does_not_let_itself_be_killed_is_left_behind() -> None:
    class Stubborn:
        async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
            await asyncio.sleep(1_000)
            raise AssertionError

    async with world_of(("unsafe", {})) as world:
        process = await executor(world)
        process.executor.tool_runs.tools = Stubborn()
        await begin(world)
        await world.until(lambda: process.executor.slots.taken == 1, 20)
        before = asyncio.get_running_loop().time()
        await process.stop()
        assert asyncio.get_running_loop().time() - before < 6


# Failures


@in_virtual_time
async def test_a_thread_that_fails_is_set_aside_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    claimable: Callable[..., Any] = own_claims.claimable  # type: ignore[attr-defined]  # the name that the module uses

    def failing(state: Any, pool: str) -> Any:
        if state.config is not None and state.config.instructions == "bad":
            raise RuntimeError("a bug in claim")
        return claimable(state, pool)

    monkeypatch.setattr(own_claims, "claimable", failing)
    async with world_of(("pure", {})) as world:
        process = await executor(world)
        bad = await begin(world, "bad", Config(model="m", instructions="bad"))
        good = await begin(world, "good")
        await world.until_rest(good)
        assert process.held(bad).quarantined == "RuntimeError: a bug in claim"
        await world.until(lambda: progress_of(world, Quarantine), 2)
        (report,) = progress_of(world, Quarantine)
        assert (report.reason, report.by) == ("RuntimeError: a bug in claim", "tool-executor/e1")
