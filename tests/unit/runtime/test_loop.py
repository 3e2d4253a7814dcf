"""The runtime's loop on a simulated log: deciding ahead, foreign records, failures, takeovers, handovers."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from schemas.codec import decode
from schemas.config import Config
from schemas.events import (
    StepFailed,
    StepFinished,
    StepStarted,
    ThreadConfigured,
    ToolCallDispatched,
    TurnCancelRequested,
    TurnEnded,
    TurnRecovered,
    TurnStarted,
)
from schemas.ids import ThreadKey
from schemas.progress import Delta as DeltaProgress
from schemas.progress import Quarantine, decode_progress
from schemas.topics import THREAD_PROGRESS
from services.chassis.fold_loop import Held
from services.chassis.log import LogError, Outgoing, TopicPartition
from services.runtime import loop as runtime_loop
from services.runtime.model import (
    AnswerItem,
    Delta,
    EmitDelta,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelRequest,
    TokenUsage,
)
from tests.support.service_world import LIMITS, TOPIC, ExecutorProcess, RuntimeProcess, World, WorldOptions
from tests.support.simulated_log import Fate, Faults
from tests.support.virtual_tests import in_virtual_time

DONE = ModelAnswer([AnswerItem("text", "done")])
Answer = ModelAnswer | ModelFailure | Exception
ONE = WorldOptions(limits=replace(LIMITS, model_tries=3))


class PlayedModel:
    """Gives its answers in order, each after `seconds`; the last one again and again."""

    def __init__(self, *answers: Answer, seconds: float = 0.1) -> None:
        self._answers = list(answers) or [DONE]
        self.seconds = seconds
        self.requests: list[ModelRequest] = []
        self.cancelled = 0

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        self.requests.append(request)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        emit(Delta("reasoning", "hm"))
        emit(Delta("text", "do"))
        emit(Delta("text", "ne"))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class ChosenFaults(Faults):
    """Loses the requests of records of these kinds, each kind so often."""

    def __init__(self, **lost: int) -> None:
        super().__init__(retry_seconds=1.0)
        self.lost = {name.replace("_", ".", 1): count for name, count in lost.items()}
        self.fate_of_lost: Fate = "request_lost"

    def fate(self, tp: TopicPartition, records: Sequence[Outgoing]) -> Fate:
        for record in records:
            kind = dict(record.headers).get("ce_type", b"").decode().removeprefix("dev.threadlog.").removesuffix(".v1")
            if self.lost.get(kind, 0) > 0:
                self.lost[kind] -= 1
                return self.fate_of_lost
        return "stored"


def world_of(model: PlayedModel, **fields: Any) -> AbstractAsyncContextManager[World]:
    @asynccontextmanager
    async def opened() -> Any:
        world = World(model, **{"options": ONE, **fields})
        await world.open()
        try:
            yield world
            world.check()
        finally:
            await world.close()

    return opened()


async def runtime(world: World, name: str = "r1", **fields: Any) -> RuntimeProcess:
    return await RuntimeProcess(world, name).start(**fields)


def batches_of(process: RuntimeProcess) -> list[list[str]]:
    """Kinds of the events of each append, from now on."""
    batches: list[list[str]] = []
    append = process.log.appender.append

    def noted(topic: str, partition: int, records: Sequence[Outgoing]) -> Any:
        if topic == TOPIC:
            kinds = [decode(r.key, r.headers, r.value, 0).kind for r in records]  # type: ignore[union-attr]  # ours
            batches.append(kinds)
        return append(topic, partition, records)

    process.log.appender.append = noted  # type: ignore[method-assign]  # noted, and passed on
    return batches


def progress_of(world: World, kind: type) -> list[Any]:
    records = world.broker.records(THREAD_PROGRESS.name, 0)
    return [each for each in [decode_progress(record.value) for record in records] if isinstance(each, kind)]


async def asked(world: World, count: int = 1) -> None:
    """Until the model has been."""
    await world.until(lambda: len(world.model.requests) >= count, 120, every=0.01)  # type: ignore[attr-defined]  # played


def held_threads() -> int:
    gc.collect()
    return sum(isinstance(each, Held) for each in gc.get_objects())


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
        assert held.work.pending == [] and held.work.ahead is None


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
        assert process.held(key).work.pending == []


@in_virtual_time
async def test_a_failed_append_that_was_stored_all_the_same_counts_once() -> None:
    faults = ChosenFaults(turn_started=1_000, step_started=1_000)
    faults.fate_of_lost = "ack_lost"
    async with world_of(PlayedModel(), faults=faults, idempotent=False) as world:
        process = await runtime(world)
        key = await world.create("t")
        await world.submit(key, "i1")
        await asyncio.sleep(40)
        faults.lost = {}
        judged = await world.until_rest(key)
        assert len(judged.applied(TurnStarted)) == len(judged.applied(TurnEnded)) == 1
        assert len([1 for record, _, _ in judged.records if record.kind == "turn.started"]) > 1
        await asyncio.sleep(40)
        assert process.held(key) is None or process.held(key).work.pending == []


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
        assert len(progress_of(world, Quarantine)) == 1


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


# Taking over and handing over


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

        world.store._pause = slow
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
        faults.lost = {"turn.recovered": 40}
        await runtime(world, "r2")
        await asyncio.sleep(35)
        faults.lost = {}
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


# Transcripts


async def with_cold_transcript(world: World, model: PlayedModel) -> tuple[ThreadKey, RuntimeProcess]:
    """One turn has been; another runtime has the thread now, whose transcript it does not know."""
    first = await runtime(world)
    key = await world.create("t")
    await world.submit(key, "i1", text="first")
    await world.until_rest(key)
    await asyncio.sleep(2)
    first.crash()
    return key, await runtime(world, "r2")


def said(request: ModelRequest) -> list[str]:
    return [str(item["content"][0]["text"]) for item in request.items if item["kind"] == "message"]  # type: ignore[index,call-overload]


@in_virtual_time
async def test_a_cold_transcript_comes_from_its_rows() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, _ = await with_cold_transcript(world, model)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]
        assert world.store.transcripts_loaded == 1


@in_virtual_time
async def test_without_rows_it_is_scanned() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def none(_: ThreadKey) -> None:
            return None

        process.runtime._transcripts = type("Away", (), {"load": staticmethod(none)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]


@in_virtual_time
async def test_rows_that_are_behind_the_state_are_not_used() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)
        load = world.store.load

        async def old(wanted: ThreadKey) -> Any:
            cold = await load(wanted)
            return None if cold is None else cold._replace(seq=1)

        process.runtime._transcripts = type("Behind", (), {"load": staticmethod(old)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]


@in_virtual_time
async def test_rows_that_are_ahead_of_the_reader_show_nothing_twice() -> None:
    """The projector has read records that are still on their way to this runtime."""
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)
        load, is_stale = world.store.load, asyncio.Event()

        async def ahead(wanted: ThreadKey) -> Any:
            for number in range(3):
                await world.submit(key, f"s{number}", mode="steer", text=f"steer {number}")
            world.store.advance()
            is_stale.set()
            return await load(wanted)

        process.runtime._transcripts = type("Ahead", (), {"load": staticmethod(ahead)})()  # type: ignore[assignment]
        fetch = process.reader.poll

        async def slow(timeout_ms: int) -> Any:
            polled = await fetch(timeout_ms)
            if is_stale.is_set():
                await asyncio.sleep(1)
            return polled

        process.reader.poll = slow  # type: ignore[method-assign]  # this reader lags behind
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[1])[:3] == ["first", "done", "second"]
        everything = said(model.requests[-1])
        assert len(everything) == len(set(everything) | {"done"}) + everything.count("done") - 1
        held = process.held(key)
        items = [(item.seq, item.part) for item in held.work.transcript.items]
        assert len(items) == len(set(items))


@in_virtual_time
async def test_a_transcript_that_cannot_be_read_sets_its_thread_aside() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def broken(_: ThreadKey) -> None:
            raise ValueError("no JSON")

        process.runtime._transcripts = type("Broken", (), {"load": staticmethod(broken)})()  # type: ignore[assignment]
        await world.submit(key, "i2")
        await asyncio.sleep(12)
        assert process.held(key).quarantined == "ValueError: no JSON"
        good = await world.create("good")
        await world.submit(good, "i1")
        await world.until_rest(good)


@in_virtual_time
async def test_a_log_that_is_away_while_a_transcript_is_scanned_is_asked_again() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def away(_: ThreadKey) -> None:
            world.broker.is_away = True

        process.runtime._transcripts = type("Away", (), {"load": staticmethod(away)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await asyncio.sleep(3)

        async def back(_: ThreadKey) -> None:
            return None

        process.runtime._transcripts = type("Back", (), {"load": staticmethod(back)})()  # type: ignore[assignment]
        world.broker.come_back()
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]


# Failures, memory


@in_virtual_time
async def test_a_thread_whose_decision_fails_is_set_aside_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = runtime_loop.decide

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
async def test_a_decision_that_never_rests_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered = runtime_loop.Append(TurnRecovered(turn=1, owner="x", found="x"))
    decide = runtime_loop.decide

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
