"""The runtime's loop on a simulated log: deciding ahead, foreign records, models, failures, memory."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.config import Config
from schemas.events import (
    StepFailed,
    StepFinished,
    StepStarted,
    ThreadConfigured,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import ThreadKey
from schemas.other_topics.progress import Delta as DeltaProgress
from schemas.other_topics.progress import Quarantine
from services.chassis.log.port import LogError, Outgoing, TopicPartition
from services.runtime import loop as runtime_loop
from services.runtime.models.port import (
    AnswerItem,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    TokenUsage,
)
from tests.support.simulated.chosen_faults import ChosenFaults
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.runtime import (
    DONE,
    Answer,
    PlayedModel,
    asked,
    batches_of,
    held_threads,
    progress_of,
    runtime,
    world_of,
)
from tests.support.worlds.services import LIMITS, TOPIC, ExecutorProcess

# Deciding ahead


@in_virtual_time
async def test_what_needs_nobody_else_goes_out_as_one_batch() -> None:
    model = PlayedModel(ModelAnswer([], [ModelCall("unsafe", {}), ModelCall("pure", {})]), DONE)
    async with world_of(model) as world:
        process = await runtime(world)
        batches = batches_of(process)
        await ExecutorProcess(world, "e1").start()
        key = await world.create("t")
        await world.submit(key, "i1")
        await world.until_rest(key)
        assert batches[:2] == [
            ["turn.started", "step.started"],
            ["step.finished", *["tool_call.approved"] * 2, *["tool_call.dispatched"] * 2],
        ]
        assert batches[-2:] == [["step.started"], ["step.finished", "turn.ended"]]


@in_virtual_time
async def test_a_turn_is_not_begun_in_the_batch_that_ends_the_last() -> None:
    """The end may lose against another owner's: then the model would be asked with an answer that never took effect."""
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        batches = batches_of(process)
        key = await world.create("t")
        await world.submit(key, "i1")
        await world.submit(key, "i2")
        await world.until_rest(key, turns=2)
        assert batches == [["turn.started", "step.started"], ["step.finished", "turn.ended"]] * 2


@in_virtual_time
async def test_the_model_is_shown_what_was_decided_ahead() -> None:
    model = PlayedModel(ModelAnswer([AnswerItem("text", "look")], [ModelCall("pure", {})]), DONE)
    async with world_of(model) as world:
        await runtime(world)
        await ExecutorProcess(world, "e1").start()
        key = await world.create("t", Config(model="m", instructions="be brief", model_settings={"temperature": 0}))
        await world.submit(key, "i1", text="hello")
        judged = await world.until_rest(key)
        first, second = model.requests
        assert (first.model, first.instructions, first.settings) == ("m", "be brief", {"temperature": 0})
        assert [tool.name for tool in first.tools] == ["idempotent", "pure", "reconcilable", "unsafe"]
        assert [item["kind"] for item in first.items] == ["message"]
        assert [item["kind"] for item in second.items] == ["message", "message", "tool_call", "tool_result"]
        contexts = [event.context for event in judged.applied(StepStarted)]
        assert [context.items for context in contexts] == [1, 4]


@in_virtual_time
async def test_a_foreign_record_in_between_makes_what_was_decided_a_no_op_and_it_decides_anew() -> None:
    """`turn.started` is lost on its way; before its second try the configuration changes."""
    faults = ChosenFaults(turn_started=1)
    model = PlayedModel()
    async with world_of(model, faults=faults) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(0.05)
        await world.command(key, ThreadConfigured(patch={"model": "other"}), "configure")
        judged = await world.until_rest(key)
        verdicts = [(r.kind, v.effect) for r, v, _ in judged.records if r.kind.startswith("turn")]
        assert verdicts == [("turn.started", "superseded"), ("turn.started", "applied"), ("turn.ended", "applied")]
        assert model.requests[-1].model == "other"
        held = process.held(key)
        assert held.work.ahead.events == [] and held.work.ahead.state is None


@in_virtual_time
async def test_a_failed_append_is_decided_again() -> None:
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(0.05)
        world.broker.is_away = True
        await asyncio.sleep(45)
        world.broker.come_back()
        judged = await world.until_rest(key)
        assert judged.kinds()[-4:] == ["turn.started", "step.started", "step.finished", "turn.ended"]
        assert process.held(key).work.ahead.events == []


@in_virtual_time
async def test_a_failed_append_that_was_stored_all_the_same_counts_once() -> None:
    faults = ChosenFaults(turn_started=1_000, step_started=1_000)
    faults.chosen = "ack_lost"
    async with world_of(PlayedModel(), faults=faults, idempotent=False) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(40)
        faults.kinds = {}
        judged = await world.until_rest(key)
        assert len(judged.applied(TurnStarted)) == len(judged.applied(TurnEnded)) == 1
        assert len([1 for record, _, _ in judged.records if record.kind == "turn.started"]) > 1
        await asyncio.sleep(40)
        assert process.held(key) is None or process.held(key).work.ahead.events == []


@in_virtual_time
async def test_what_the_log_refuses_for_good_sets_the_thread_aside() -> None:
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        good, bad = await world.create("good"), await world.create("bad")
        append = process.log.appender.append

        def refusing(topic: str, partition: int, records: Sequence[Outgoing]) -> Any:
            if records[0].key == bad.to_bytes():
                refused = asyncio.get_running_loop().create_future()
                refused.set_exception(LogError("no"))
                return refused
            return append(topic, partition, records)

        process.log.appender.append = refusing  # type: ignore[method-assign]  # for one thread
        await world.submit(bad, "i1")
        await world.submit(good, "i1")
        await world.until_rest(good)
        assert process.held(bad).quarantined == "LogError: no"
        await world.until(lambda: progress_of(world, Quarantine), 2)


# Models


@in_virtual_time
async def test_deltas_are_shown_as_they_come() -> None:
    async with world_of(PlayedModel()) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await world.until_rest(key)
        deltas = progress_of(world, DeltaProgress)
        assert [(delta.text, delta.reasoning) for delta in deltas] == [(None, "hm"), ("done", None)]
        assert {(delta.turn, delta.step, delta.attempt) for delta in deltas} == {(1, 1, 1)}


@in_virtual_time
async def test_a_failure_is_tried_again_with_backoff_and_then_fails_the_turn() -> None:
    model = PlayedModel(ModelFailure("overloaded", retriable=True))
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        assert len(model.requests) == 3
        assert judged.state.last_outcome == "failed"
        failures = [(r.time_ms, r.data) for r, v, _ in judged.records if isinstance(r.data, StepFailed)]
        assert [data.retry_at_ms - time_ms for time_ms, data in failures] == [500, 1_000, 2_000]  # type: ignore[operator]


@pytest.mark.parametrize("seconds", [3.0, 900.0])
@in_virtual_time
async def test_what_the_provider_asks_to_wait_is_waited_within_bounds(seconds: float) -> None:
    model = PlayedModel(ModelFailure("slow down", retriable=True, retry_after_seconds=seconds), DONE)
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        (failed,) = judged.applied(StepFailed)
        (time_ms,) = [r.time_ms for r, _, _ in judged.records if r.kind == "step.failed"]
        assert failed.retry_at_ms - time_ms == 1_000 * min(seconds, LIMITS.retry_most_seconds)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ModelFailure("no such model", retriable=False), "no such model"),
        (ModelAnswer([AnswerItem("text", "x" * 200_000)]), "200"),
        (
            ModelAnswer([AnswerItem("text", "x")], [ModelCall("pure", {"deep": 1})], usage=TokenUsage(input_tokens=-1)),
            "",
        ),
    ],
)
@in_virtual_time
async def test_an_answer_that_cannot_be_taken_fails_the_turn_at_once(answer: Answer, says: str) -> None:
    model = PlayedModel(answer)
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        (failed,) = judged.applied(StepFailed)
        assert (judged.state.last_outcome, failed.retriable, len(model.requests)) == ("failed", False, 1)
        assert says in failed.error.message


@in_virtual_time
async def test_a_bug_in_an_adapter_is_a_failed_try() -> None:
    model = PlayedModel(ZeroDivisionError("oops"), DONE)
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        assert judged.state.last_outcome == "completed"
        (failed,) = judged.applied(StepFailed)
        assert "ZeroDivisionError" in failed.error.message


@in_virtual_time
async def test_what_the_log_cannot_carry_is_replaced_so_that_it_shows() -> None:
    call = ModelCall("pure\ud800", {"n": 2**60, "text": "a\x00b", "nan": float("nan")})
    model = PlayedModel(ModelAnswer([AnswerItem("text", "nul \x00", provider={"id": "\ud800"})], [call]), DONE)
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key)
        answer = judged.applied(StepFinished)[0]
        assert answer.items[0].text == "nul \u2400"
        assert answer.items[0].provider == {"id": "\ufffd"}
        assert answer.calls[0].tool == "pure\ufffd"
        assert answer.calls[0].args == {"n": str(2**60), "text": "a\u2400b", "nan": "nan"}


@in_virtual_time
async def test_a_cancel_drops_the_model_call() -> None:
    model = PlayedModel(seconds=50)
    async with world_of(model) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asked(world)
        await world.command(key, TurnCancelRequested(turn=1, reason="user"), "cancel")
        judged = await world.until_rest(key, seconds=5)
        assert (model.cancelled, judged.state.last_outcome) == (1, "aborted")
        assert process.held(key).work.calling is None


@in_virtual_time
async def test_a_turn_whose_time_is_over_is_cancelled_by_the_clock_alone() -> None:
    model = PlayedModel(seconds=5_000)
    async with world_of(model) as world:
        await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        judged = await world.until_rest(key, seconds=LIMITS.turn_seconds + 5)
        assert judged.state.last_outcome == "failed"
        assert model.cancelled == 1


# Failures, memory


@in_virtual_time
async def test_a_thread_whose_decision_fails_is_set_aside_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = runtime_loop.decide  # type: ignore[attr-defined]  # the name that the module uses

    def failing(key: ThreadKey, *arguments: Any) -> Any:
        if key.thread == "bad":
            raise RuntimeError("a bug in decide")
        return decide(key, *arguments)

    monkeypatch.setattr(runtime_loop, "decide", failing)
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        good, bad = await world.create("good"), await world.create("bad")
        for key in (bad, good):
            await world.submit(key, "i1")
        await world.until_rest(good)
        await world.submit(bad, "i2")
        await asyncio.sleep(1)
        assert process.held(bad).quarantined == "RuntimeError: a bug in decide"
        (report,) = progress_of(world, Quarantine)
        assert report.reason == "RuntimeError: a bug in decide"
        gauge = process.runtime._metrics.quarantined
        assert gauge._value.get() == 1
        await process.loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
        assert gauge._value.get() == 0


@in_virtual_time
async def test_a_thread_that_was_set_aside_in_the_middle_of_a_turn_goes_on_when_its_failure_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide, is_broken = runtime_loop.decide, True  # type: ignore[attr-defined]  # the name that the module uses

    def failing(key: ThreadKey, state: Any, *arguments: Any) -> Any:
        if is_broken and state.turn is not None:
            raise RuntimeError("a bug in decide")
        return decide(key, state, *arguments)

    monkeypatch.setattr(runtime_loop, "decide", failing)
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await world.until(lambda: len(progress_of(world, Quarantine)) >= 2, 60)
        metrics = process.runtime._metrics
        assert (metrics.quarantined._value.get(), metrics.refolded._value.get()) == (1, 1)
        first, second = progress_of(world, Quarantine)[:2]
        assert (first.by, first.since_ms) == ("runtime/r1", second.since_ms)
        is_broken = False
        await world.submit(key, "i2")
        judged = await world.until_rest(key, turns=2)
        assert judged.state.last_outcome == "completed"
        assert (metrics.quarantined._value.get(), metrics.refolded._value.get()) == (0, 2)
        reports = len(progress_of(world, Quarantine))
        await asyncio.sleep(60)
        assert len(progress_of(world, Quarantine)) == reports, "healed"


@in_virtual_time
async def test_a_decision_that_never_rests_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered = runtime_loop.Append(TurnRecovered(turn=1, owner="x", found="x"))  # type: ignore[attr-defined]  # the name that the module uses
    decide = runtime_loop.decide  # type: ignore[attr-defined]  # the name that the module uses

    def looping(key: ThreadKey, state: Any, *arguments: Any) -> Any:
        return [recovered] if state.turn is not None else decide(key, state, *arguments)

    monkeypatch.setattr(runtime_loop, "decide", looping)
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(1)
        assert "without coming to rest" in process.held(key).quarantined
        assert world.of(key).kinds() == ["thread.created", "input.submitted"], "nothing of it was sent"


@in_virtual_time
async def test_an_idle_thread_leaves_memory_whole() -> None:
    """No timer, task or record under way keeps it: a service holds tens of thousands of idle threads."""
    async with world_of(PlayedModel()) as world:
        process = await runtime(world)
        before = held_threads()
        for number in range(120):
            key = await world.create(f"t{number}")
            await world.submit(key, "i1")
            await asyncio.sleep(0.2)
        assert held_threads() > before
        await asyncio.sleep(5)
        assert process.loop.partitions[0].threads == {}
        assert held_threads() == before
        assert len(process.timers) <= 102


@in_virtual_time
async def test_a_lost_partition_leaves_no_timer_behind() -> None:
    async with world_of(PlayedModel(seconds=50)) as world:
        process = await runtime(world)
        before = held_threads()
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(1)
        assert held_threads() == before + 1
        await process.loop.revoked(frozenset({TopicPartition(TOPIC, 0)}))
        await asyncio.sleep(1)
        assert held_threads() == before
