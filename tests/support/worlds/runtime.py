"""A runtime with a model that gives the answers of the test, and what such tests look at."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from schemas.codec import decode
from schemas.other_topics.progress import decode_progress
from schemas.topics import THREAD_PROGRESS
from services.chassis.following.followed_threads import FollowedThread
from services.chassis.log.port import Outgoing
from services.runtime.models.port import (
    AnswerItem,
    Delta,
    EmitDelta,
    ModelAnswer,
    ModelFailure,
    ModelRequest,
)
from tests.support.worlds.services import LIMITS, TOPIC, RuntimeProcess, World, WorldOptions

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
    return sum(isinstance(each, FollowedThread) for each in gc.get_objects())
