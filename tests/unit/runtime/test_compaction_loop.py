"""Compactions in the loop: a model that is asked, answers or fails, and owners that come and go meanwhile."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from schemas.events import (
    ContextCompacted,
    ContextCompactionFailed,
    ContextCompactionRequested,
    StepStarted,
    ThreadRewound,
    TurnEnded,
)
from schemas.ids import ThreadKey
from schemas.other_topics.progress import Delta as DeltaProgress
from services.runtime.deciding.compaction import ASKED
from services.runtime.models.port import (
    AnswerItem,
    Delta,
    EmitDelta,
    ModelAnswer,
    ModelFailure,
    ModelRequest,
    TokenUsage,
    text_of_content,
)
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.runtime import ONE, progress_of, runtime, world_of
from tests.support.worlds.services import World

SUMMARY = ModelAnswer([AnswerItem("text", "They said first.")], usage=TokenUsage(50, 5))
DOWN = ModelFailure("overloaded", retriable=True)


class SummarisingModel:
    """Answers steps at once, and summaries as the test says; the last of those again and again."""

    def __init__(self, *summaries: ModelAnswer | ModelFailure, seconds: float = 0.1, tokens: int = 10) -> None:
        self._summaries = list(summaries) or [SUMMARY]
        self.seconds = seconds
        self.tokens = tokens
        self.steps: list[ModelRequest] = []
        self.asked: list[ModelRequest] = []

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        emit(Delta("text", "so"))
        if not request.is_summary:
            self.steps.append(request)
            return ModelAnswer([AnswerItem("text", "done")], usage=TokenUsage(self.tokens, 1))
        self.asked.append(request)
        await asyncio.sleep(self.seconds)
        return self._summaries.pop(0) if len(self._summaries) > 1 else self._summaries[0]


def opened(model: SummarisingModel, **limits: Any) -> Any:
    return world_of(model, options=replace(ONE, limits=replace(ONE.limits, **limits)))  # type: ignore[arg-type]  # a model


def told(request: ModelRequest) -> list[str]:
    return [
        str(item["text"]) if item["kind"] == "summary" else text_of_content(item["content"]) for item in request.items
    ]


async def with_a_turn(world: World, config: Config | None = None) -> ThreadKey:
    key = await world.create("t", config)
    await world.submit(key, "i1", text="first")
    await world.until_rest(key)
    return key


async def ask_for_a_summary(world: World, key: ThreadKey, name: str = "compact") -> None:
    await world.command(key, ContextCompactionRequested(), name)


async def until_compacted(world: World, key: ThreadKey, times: int = 1) -> None:
    await world.until(lambda: len(world.of(key).applied(ContextCompacted)) >= times)


@in_virtual_time
async def test_a_summary_that_was_asked_for_takes_the_place_of_the_conversation() -> None:
    model = SummarisingModel()
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world)
        deltas = len(progress_of(world, DeltaProgress))
        await ask_for_a_summary(world, key)
        await until_compacted(world, key)
        assert told(model.asked[0]) == ["first", "done", ASKED]
        assert (model.asked[0].tool_choice, len(model.asked[0].tools)) == ("none", len(model.steps[0].tools))
        assert len(progress_of(world, DeltaProgress)) == deltas
        [compacted] = world.of(key).applied(ContextCompacted)
        assert (compacted.summary, compacted.usage.input_tokens) == ("They said first.", 50)
        await world.submit(key, "i2", text="second")
        judged = await world.until_rest(key, turns=2)
        assert told(model.steps[-1]) == ["They said first.", "second"]
        assert judged.applied(StepStarted)[-1].context.items == 2


@in_virtual_time
async def test_a_large_context_is_compacted_before_the_turn_goes_on_and_what_was_asked_stays_in_its_words() -> None:
    model = SummarisingModel(tokens=1_000)
    async with opened(model, context_tokens=500) as world:
        await runtime(world)
        key = await with_a_turn(world)
        assert not world.of(key).applied(ContextCompacted)
        await world.submit(key, "i2", text="second")
        judged = await world.until_rest(key, turns=2)
        assert told(model.asked[0]) == ["first", "done", ASKED]
        assert told(model.steps[-1]) == ["They said first.", "second"]
        [requested] = judged.applied(ContextCompactionRequested)
        assert (requested.base, requested.turn) == (0, 2)


@in_virtual_time
async def test_a_threads_own_limit_counts_where_the_service_has_none() -> None:
    model = SummarisingModel(tokens=1_000)
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world, Config(model="seeded", limits=OwnLimits(context_tokens=999)))
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert len(model.asked) == 1


@in_virtual_time
async def test_a_summary_is_tried_again_and_then_given_up_and_the_thread_goes_on_as_it_was() -> None:
    model = SummarisingModel(DOWN, DOWN, DOWN, SUMMARY, tokens=1_000)
    async with opened(model, context_tokens=500) as world:
        await runtime(world)
        key = await with_a_turn(world)
        await world.submit(key, "i2", text="second")
        judged = await world.until_rest(key, turns=2)
        assert len(model.asked) == ONE.limits.model_tries == 3
        [failed] = judged.applied(ContextCompactionFailed)
        assert failed.error.message == "overloaded"
        assert told(model.steps[-1]) == ["first", "done", "second"]
        await world.submit(key, "i3", text="third")
        judged = await world.until_rest(key, turns=3)
        assert told(model.steps[-1]) == ["They said first.", "third"]


@in_virtual_time
async def test_an_answer_without_a_text_is_a_failed_try() -> None:
    model = SummarisingModel(ModelAnswer([]), SUMMARY)
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world)
        await ask_for_a_summary(world, key)
        await until_compacted(world, key)
        assert len(model.asked) == 2


@in_virtual_time
async def test_where_there_is_nothing_to_sum_up_the_model_is_not_asked() -> None:
    model = SummarisingModel()
    async with opened(model) as world:
        await runtime(world)
        key = await world.create("t")
        await ask_for_a_summary(world, key)
        await world.until(lambda: world.of(key).applied(ContextCompactionFailed))
        assert not model.asked
        await world.submit(key, "i1", text="first")
        await world.until_rest(key)


@in_virtual_time
async def test_a_rewind_meanwhile_asks_about_what_is_left() -> None:
    model = SummarisingModel(seconds=5)
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        await ask_for_a_summary(world, key)
        await world.until(lambda: model.asked)
        await world.command(key, ThreadRewound(to_turn=1), "rewind")
        await until_compacted(world, key)
        assert [told(request) for request in model.asked] == [
            ["first", "done", "second", "done", ASKED],
            ["first", "done", ASKED],
        ]


@in_virtual_time
async def test_whoever_takes_the_thread_over_asks_again_and_the_first_summary_counts() -> None:
    model = SummarisingModel(seconds=5)
    async with opened(model) as world:
        first = await runtime(world)
        key = await with_a_turn(world)
        await ask_for_a_summary(world, key)
        await world.until(lambda: model.asked)
        first.crash()
        await runtime(world, "r2")
        await until_compacted(world, key)
        assert len(model.asked) == 2
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert len(world.of(key).applied(ContextCompacted)) == 1


@in_virtual_time
async def test_a_zombies_summary_and_its_successors_come_to_one() -> None:
    model = SummarisingModel(seconds=20)
    async with opened(model) as world:
        zombie = await runtime(world)
        key = await with_a_turn(world)
        await ask_for_a_summary(world, key)
        await world.until(lambda: model.asked)
        zombie.pause()
        await runtime(world, "r2")
        await world.until(lambda: len(model.asked) == 2, 120)
        zombie.resume()
        await until_compacted(world, key)
        await world.submit(key, "i2", text="second")
        judged = await world.until_rest(key, turns=2)
        assert len(judged.applied(ContextCompacted)) == 1
        assert len(judged.applied(TurnEnded)) == 2
        assert told(model.steps[-1]) == ["They said first.", "second"]


class SmallModel(SummarisingModel):
    """Takes so many items and characters, of a step or for a summary."""

    def __init__(self, items: int, characters: int = 100_000) -> None:
        super().__init__()
        self.most = items
        self.characters = characters
        self.refused: list[ModelRequest] = []

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        if len(request.items) > self.most or sum(map(len, told(request))) > self.characters:
            await asyncio.sleep(self.seconds)
            self.refused.append(request)
            return ModelFailure("too long", retriable=False, too_long=True)
        return await super().answer(request, emit)


@in_virtual_time
async def test_a_conversation_that_the_model_does_not_take_any_more_is_summed_up_and_goes_on() -> None:
    model = SmallModel(items=4)
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        await world.submit(key, "i3", text="third")
        judged = await world.until_rest(key, turns=3)
        assert [told(request) for request in model.refused] == [
            ["first", "done", "second", "done", "third"],
            ["first", "done", "second", "done", ASKED],
        ]
        [shorter] = model.asked
        assert len(shorter.items) == 2 and "The user said: first" in told(shorter)[0]
        assert told(model.steps[-1]) == ["They said first.", "third"]
        assert [end.outcome for end in judged.applied(TurnEnded)] == ["completed"] * 3
        [requested] = judged.applied(ContextCompactionRequested)
        assert (requested.base, requested.turn) == (0, 3)


@in_virtual_time
async def test_an_input_that_is_too_long_by_itself_ends_its_turn_and_the_thread_goes_on() -> None:
    model = SmallModel(items=9, characters=1_000)
    async with opened(model) as world:
        await runtime(world)
        key = await with_a_turn(world)
        await world.submit(key, "i2", text="x" * 1_001)
        judged = await world.until_rest(key, turns=2)
        end = judged.applied(TurnEnded)[-1]
        assert (end.outcome, "no summary could take its place: too long" in (end.reason or "")) == ("failed", True)
        assert len(judged.applied(ContextCompacted)) == 1
        await world.command(key, ThreadRewound(to_turn=1), "rewind")
        await world.submit(key, "i3", text="third")
        judged = await world.until_rest(key, turns=3)
        assert judged.applied(TurnEnded)[-1].outcome == "completed"


@pytest.mark.parametrize("kind", ["step.failed", "context.compaction_requested", "context.compacted"])
@in_virtual_time
async def test_an_owner_that_dies_in_the_midst_of_it_leaves_nothing_that_does_not_heal(kind: str) -> None:
    model = SmallModel(items=4)
    async with opened(model) as world:
        process = await runtime(world)
        key = await with_a_turn(world)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        await world.submit(key, "i3", text="third")
        await world.until(lambda: any(record.kind == kind for record, _, _ in world.of(key).records), every=0.001)
        process.crash()
        await runtime(world, "r2")
        judged = await world.until_rest(key, turns=3)
        assert judged.applied(TurnEnded)[-1].outcome == "completed"
        assert len(judged.applied(ContextCompacted)) == 1
        assert told(model.steps[-1]) == ["They said first.", "third"]
