"""A model that answers by chance: text, calls of every effect class, failures, slowly or at once. It refuses what a
provider would refuse.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import JsonValue

from services.runtime.models.port import (
    AnswerItem,
    Delta,
    EmitDelta,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelRequest,
    TokenUsage,
)
from tests.support.processes.ledger import EFFECTS

STEPS_MOST = 2
ALIKE = 6
"""Outputs that calls have in common."""
TASKS = ("a", "b", "c", "d")
TOKENS_PER_ITEM = 5
ASKED = "about to be replaced by a summary"
"""What the runtime says when it asks for one."""
CLIENT_TOOL = "ask"
EFFECTS_DRAWN = (*EFFECTS, "unsafe", "unsafe", "idempotent")


class SeededModel:
    def __init__(
        self,
        rng: random.Random,
        seconds: Sequence[float] = (0, 0, 0.2, 1, 5),
        *,
        spawns: float = 0.0,
        plans: float = 0.0,
        outputs: float = 0.0,
    ) -> None:
        """`seconds`: how long the tools take that it calls. `spawns`, `plans`: how many of its calls are those;
        `outputs`: how many leave something for the artifact store.
        """
        self._rng = rng
        self._seconds = seconds
        self._spawns = spawns
        self._plans = plans
        self._outputs = outputs
        self.problems: list[str] = []
        self.heard: dict[str, Sequence[Mapping[str, object]]] = {}
        """What each answer was given to, by its text: no two answers have the same."""
        self.summaries: list[str] = []
        self.is_mended = False
        self.at_answer: Callable[[], Awaitable[None]] = _nothing

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        rng = self._rng
        self._check(request.items)
        await asyncio.sleep(rng.choice([0, 0.05, 0.05, 0.5, 2]))
        await self.at_answer()
        if rng.random() < 0.1 and not self.is_mended:
            return self._failure()
        if asks_for_a_summary(request.items):
            return self._summary(request)
        emit(Delta("text", "well"))
        calls = sum(item["kind"] == "tool_call" for item in request.items[_last_user(request.items) :])
        if calls < STEPS_MOST and rng.random() < 0.75:
            proposed = [self._call() for _ in range(rng.choice([1, 1, 2, 3]))]
            text = self._text("let me see", request)
            return ModelAnswer([AnswerItem("text", text)], proposed, usage=_usage(request.items))
        text = self._text("answer", request)
        return ModelAnswer([AnswerItem("text", text)], usage=_usage(request.items))

    def _summary(self, request: ModelRequest) -> ModelAnswer:
        if self._rng.random() < 0.1 and not self.is_mended:
            return ModelAnswer([])  # without a text
        self.summaries.append(f"summary {len(self.summaries)} {self._rng.random()}")
        return ModelAnswer([AnswerItem("text", self.summaries[-1])], usage=_usage(request.items))

    def _text(self, saying: str, request: ModelRequest) -> str:
        text = f"{saying} {len(self.heard)} {self._rng.random()}"
        self.heard[text] = request.items
        return text

    def _failure(self) -> ModelFailure:
        if self._rng.random() < 0.2:
            raise RuntimeError("a bug in an adapter")
        return ModelFailure("overloaded", retriable=self._rng.random() < 0.8)

    def _call(self) -> ModelCall:
        rng = self._rng
        if self._spawns and rng.random() < self._spawns:
            return ModelCall("spawn_thread", self._task())
        if self._plans and rng.random() < self._plans:
            return ModelCall("update_plan", {"tasks": tasks_of_a_plan(rng)})
        if rng.random() < 0.04:
            return ModelCall("no-such-tool", {})
        if rng.random() < 0.04:
            return ModelCall("unsafe", {}, malformed="{oops")
        if rng.random() < 0.08:
            return ModelCall(CLIENT_TOOL, {"n": rng.random()})
        seconds = rng.choice(self._seconds)
        args = {"seconds": seconds, "fails": rng.random() < 0.1, "n": rng.choice([1, 2, rng.random()])}
        if self._outputs and rng.random() < self._outputs:
            args["outputs"] = rng.choice([1, 1, 3])
            args["alike"] = rng.choice([None, rng.randint(1, ALIKE)])
        return ModelCall(rng.choice(EFFECTS_DRAWN), args)

    def _task(self) -> dict[str, JsonValue]:
        rng = self._rng
        drawn = rng.random()
        if drawn < 0.05:
            return {"title": "without a task"}
        if drawn < 0.1:
            return {"task": "with a tool that nobody has", "tools": ["no-such-tool"]}
        tools: dict[str, JsonValue] = {"tools": ["pure", "idempotent"]} if rng.random() < 0.2 else {}
        return {"task": f"task {rng.random()}", **tools}

    def _check(self, items: Sequence[Mapping[str, object]]) -> None:
        """Each call has one result, after it and before what is said next."""
        waiting: list[object] = []
        for item in items:
            if item["kind"] == "tool_call":
                waiting.append(item["call"])
            elif item["kind"] == "tool_result":
                if item["call"] not in waiting:
                    self.problems.append(f"a result of {item['call']} without its call, or twice")
                else:
                    waiting.remove(item["call"])
        if waiting:
            self.problems.append(f"the model is asked while {waiting} have no result")


def asks_for_a_summary(items: Sequence[Mapping[str, object]]) -> bool:
    return ASKED in str(items[-1].get("content")) if items else False


def _usage(items: Sequence[Mapping[str, object]]) -> TokenUsage:
    return TokenUsage(input_tokens=TOKENS_PER_ITEM * len(items), output_tokens=1)


def tasks_of_a_plan(rng: random.Random, *, is_one: bool = False) -> list[JsonValue]:
    """Now and then some that wait for each other, unless they shall be a plan."""
    names = list(TASKS[: rng.choice([1, 2, 3, 3, 4])])
    rng.shuffle(names)
    tasks: list[JsonValue] = []
    for number, name in enumerate(names):
        before = names[:number] if is_one or rng.random() < 0.97 else names
        needed: list[JsonValue] = [each for each in before if rng.random() < 0.5]
        tasks.append({"id": name, "title": f"{name} {rng.random()}", "depends_on": needed})
    return tasks


async def _nothing() -> None:
    pass


def _last_user(items: Sequence[Mapping[str, object]]) -> int:
    users = [place for place, item in enumerate(items) if item["kind"] == "message" and item.get("role") == "user"]
    return users[-1] if users else 0
