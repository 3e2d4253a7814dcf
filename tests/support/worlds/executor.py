"""A runtime whose model calls the ledger's tools, and executors that the test starts and kills, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import JsonValue

from schemas.config import Config
from schemas.ids import ThreadKey
from services.chassis.log.port import TopicPartition
from services.runtime.models.port import AnswerItem, EmitDelta, ModelAnswer, ModelCall, ModelRequest
from tests.support.worlds.services import TOPIC, ExecutorProcess, Judged, RuntimeProcess, World, WorldOptions

LEASE = 6
P0 = frozenset({TopicPartition(TOPIC, 0)})


class Calls:
    """A model that calls these tools at once, then says that it is done."""

    def __init__(self, *calls: tuple[str, dict[str, JsonValue]]) -> None:
        self._calls = calls

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer:
        if request.items[-1]["kind"] == "tool_result":
            return ModelAnswer([AnswerItem("text", "done")])
        return ModelAnswer([], [ModelCall(tool, args) for tool, args in self._calls])


@asynccontextmanager
async def world_of(*calls: tuple[str, dict[str, JsonValue]], **fields: Any) -> AsyncIterator[World]:
    """A runtime and a projector run; executors are the test's."""
    world = World(Calls(*calls), **{"options": WorldOptions(lease_seconds=LEASE), **fields})
    await world.open()
    await RuntimeProcess(world, "r1").start()
    try:
        yield world
        world.check()
    finally:
        await world.close()


async def executor(world: World, name: str = "e1", **fields: Any) -> ExecutorProcess:
    return await ExecutorProcess(world, name).start(**fields)


async def begin(world: World, name: str = "t", config: Config | None = None) -> ThreadKey:
    key = await world.create(name, config)
    await world.submit(key, "i1")
    return key


async def runs(world: World, count: int = 1) -> None:
    """Until so many tools have begun."""
    await world.until(lambda: len(world.ledger.runs) >= count, 60, every=0.01)


def statuses(judged: Judged) -> list[str | None]:
    """Of the first call, as they changed; its outcome in the end."""
    seen: list[str | None] = []
    for _, _, state in judged.records:
        call = state.calls.get("1.1.0")
        status = None if call is None else call.outcome or call.status
        if status is not None and (not seen or seen[-1] != status):
            seen.append(status)
    return seen


async def status_is(world: World, key: ThreadKey, status: str, seconds: float = 60) -> None:
    await world.until(lambda: (statuses(world.of(key)) or [None])[-1] == status, seconds)
