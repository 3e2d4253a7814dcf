"""Parents and children in a world of simulated runtimes: what each is asked, and what it answers."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from schemas.config import Config
from schemas.ids import ThreadKey
from services.runtime.deciding.children import Origin, child_of
from services.runtime.deciding.own_tools import ENTRY
from services.runtime.models.port import AnswerItem, EmitDelta, ModelAnswer, ModelCall, ModelFailure, ModelRequest
from services.runtime.models.port import text_of_content as text_of
from tests.support.worlds.services import LIMITS, World, WorldOptions

PARTITIONS = 4
OPTIONS = WorldOptions(partitions=PARTITIONS, limits=LIMITS)
Say = Callable[[str], ModelAnswer | ModelFailure]


def text(words: str) -> ModelAnswer:
    return ModelAnswer([AnswerItem("text", words)])


def spawns(*tasks: str, **args: Any) -> ModelAnswer:
    return ModelAnswer([], [ModelCall("spawn_thread", {"task": task, **args}) for task in tasks])


def last_words(request: ModelRequest) -> str:
    """Of the user, or what the last calls came to."""
    kind = request.items[-1]["kind"]
    results = [item for item in request.items if item["kind"] == kind == "tool_result"]
    return " | ".join(text_of(item["content"]) for item in results or request.items[-1:])


class SaidModel:
    """Answers the last words that it is shown by a table; else it says them again."""

    def __init__(self, says: Mapping[str, ModelAnswer | ModelFailure], seconds: float = 0.1) -> None:
        self._says = says
        self.seconds = seconds
        self.slow: dict[str, float] = {}
        """How long it takes over certain words."""
        self.requests: list[ModelRequest] = []

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        self.requests.append(request)
        words = last_words(request)
        await asyncio.sleep(self.slow.get(words, self.seconds))
        return self._says.get(words, text(f"heard: {words}"))

    def asked(self, words: str) -> bool:
        return any(last_words(request) == words for request in self.requests)


@asynccontextmanager
async def family(model: SaidModel, options: WorldOptions = OPTIONS, **fields: Any) -> Any:
    """A world whose catalog has the tools of the runtime."""
    world = World(model, options=options, **fields)  # type: ignore[arg-type]  # said, not played
    await world.open()
    await world.publish_tools(ENTRY)
    try:
        yield world
        world.check()
    finally:
        await world.close()


def child(key: ThreadKey, call: str = "1.1.0") -> ThreadKey:
    return child_of(key, Origin(call))


async def parent(world: World, words: str = "delegate", thread: str = "parent", **config: Any) -> ThreadKey:
    key = await world.create(thread, Config(model="said", **config))
    await world.submit(key, "i1", text=words)
    return key
