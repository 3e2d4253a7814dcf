"""What people want of their threads: inputs of every mode, cancels, second thoughts, answers to what waits for them."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from schemas.canonical import call_hash
from schemas.codec import Record
from schemas.events import ContextCompactionRequested, InputSubmitted, StepFinished, ToolCallLost
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import Call, ThreadState
from schemas.thread import Verdict
from schemas.tools import CLIENT_POOL
from tests.simulation.clients import Clients, Command
from tests.simulation.model import tasks_of_a_plan
from tests.simulation.plan import Plan
from tests.simulation.world import SimulationWorld

TENANTS = ("acme", "beta")
LOOK_SECONDS = 1.0
OTHER_ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "spawn_thread": {"task": "what a person would rather have"},
    "update_plan": {"tasks": [{"id": "a", "title": "what a person would rather have"}]},
}
MODES = ("queue", "queue", "queue", "steer", "steer", "interrupt", "interrupt", "reject")


class Owner:
    """Of one thread."""

    def __init__(self, world: SimulationWorld, clients: Clients, plan: Plan, number: int, rng: random.Random) -> None:
        self._world = world
        self._clients = clients
        self._plan = plan
        self._rng = rng
        self._tenant = TENANTS[number % len(TENANTS)]
        self._who = f"{self._tenant}/owner{number}"
        self._name = f"thread{number}"
        self._commands = 0
        self._inputs: list[str] = []
        self.is_mended = False
        self.key: ThreadKey | None = None
        """Once the thread is there."""
        self.is_closed = False
        self._closed: set[ThreadKey] = set()
        if plan.hasty:
            world.onlookers.append(self._react)

    # Its own life

    async def live(self) -> None:
        rng = self._rng
        await asyncio.sleep(rng.choice([0, 0, rng.uniform(0, self._plan.seconds / 2)]))
        await self._create()
        for _ in range(rng.randint(1, self._plan.acts)):
            await self._act()
            await asyncio.sleep(rng.choice([0, 0.1, rng.uniform(0, self._plan.seconds / self._plan.acts)]))

    async def last(self) -> None:
        """Once everything is mended: releases what a recovery held, and sees that the thread goes on."""
        self.is_mended = True
        if not self.is_closed:
            await self._submit({"mode": "queue"})

    async def _create(self) -> None:
        rng = self._rng
        body: dict[str, Any] = {
            "config": {
                "model": "seeded",
                "approval": self._plan.approval,
                "on_recovery": self._plan.on_recovery,
                "on_unknown": rng.choice(["wait", "wait", "end"]),
                "one_turn_per_input": rng.random() < 0.7,
                "plan_approval": self._plan.plan_approval,
            }
        }
        if rng.random() < 0.5:
            body["input"] = {"text": "first"}
        command = Command(self._who, "POST", "/v1/threads", body, f"{self._name}-create")
        answer = await self._clients.send(command)
        if "thread" not in answer.body:
            self._clients.problems.append((command, f"a thread cannot be created: {answer.status} {answer.body}"))
            return
        self.key = ThreadKey(TenantId(self._tenant), ThreadId(answer.body["thread"]))
        if "input" in answer.body:
            self._inputs.append(answer.body["input"])

    async def _act(self) -> None:
        rng = self._rng
        drawn = rng.random()
        family = self._family()
        if len(family) > 1 and rng.random() < 0.3:
            await self._act_on(rng.choice(family[1:]))
        elif self._plan.forks and family and rng.random() < self._plan.forks:
            await self._branch(rng.choice(family))
        elif self._plan.plans and rng.random() < 0.15:
            await self._post("plan", {"tasks": tasks_of_a_plan(rng, is_one=True)})
        elif drawn < 0.62 or not self._inputs:
            body: dict[str, Any] = {"mode": rng.choice(MODES)}
            if rng.random() < 0.2:
                body["mode"] = "steer"
                body["expected_turn"] = max(1, self._seen().last_turn + rng.choice([0, 0, 1]))
            await self._submit(body)
        elif drawn < 0.8:
            turn = max(1, self._seen().last_turn)
            await self._post(f"turns/{turn}/cancel", {"discard": rng.random() < 0.3})
        elif drawn < 0.88:
            await self._post(f"inputs/{rng.choice(self._inputs)}/withdraw", {})
        elif drawn < 0.95:
            await self._send("PATCH", "", {"title": f"title {rng.random()}", "config": {"one_turn_per_input": True}})
        else:
            self.is_closed = True
            await self._post("close", {})

    async def _act_on(self, child: ThreadKey) -> None:
        """A child thread is a thread like any other, for people."""
        rng = self._rng
        drawn = rng.random()
        if drawn < 0.5:
            await self._post(f"turns/{rng.choice([1, 1, 2])}/cancel", {}, key=child)
        elif drawn < 0.8:
            body = {"mode": rng.choice(MODES), "text": f"input {self._commands}"}
            await self._post("inputs", body, key=child)
        else:
            self._closed.add(child)
            await self._post("close", {}, key=child)

    async def _branch(self, key: ThreadKey) -> None:
        """Forks it, goes back in it, or has it compacted."""
        rng = self._rng
        drawn = rng.random()
        seen = self._seen(key)
        if drawn < 0.5:
            body: dict[str, Any] = {}
            if rng.random() < 0.5:
                body["at"] = {"seq": rng.randint(1, seen.seq + 1)}
            elif rng.random() < 0.5:
                body["at"] = {"turn": rng.randint(1, seen.last_turn + 1)}
            if rng.random() < 0.7:
                body["input"] = {"text": f"input {self._commands}"}
            await self._post("fork", body, key=key)
        elif drawn < 0.75:
            await self._post("rewind", {"to_turn": rng.randint(0, seen.last_turn)}, key=key)
        else:
            await self._post("compact", {}, key=key)

    async def _submit(self, body: dict[str, Any]) -> None:
        answer = await self._post("inputs", body | {"text": f"input {self._commands}"})
        if answer is not None and answer.status in {200, 202}:
            self._inputs.append(answer.body["input"])

    async def _post(self, path: str, body: dict[str, Any], who: str | None = None, key: ThreadKey | None = None) -> Any:
        return await self._send("POST", f"/{path}", body, who, key)

    async def _send(
        self, method: str, path: str, body: dict[str, Any], who: str | None = None, key: ThreadKey | None = None
    ) -> Any:
        """To the thread itself, where no other is named."""
        key = key or self.key
        if key is None:
            return None
        self._commands += 1
        where = f"/v1/threads/{key.thread}{path}"
        name = f"{self._name}-{self._commands}"
        concerns = None if path == "/fork" else key  # a thread that is not there yet
        return await self._clients.send(Command(who or self._who, method, where, body, name, concerns))

    def _seen(self, key: ThreadKey | None = None) -> ThreadState:
        """As the views show it, if they do."""
        key = key or self.key
        stored = None if key is None else self._world.stored_state(key)
        return stored if stored is not None else ThreadState()

    def _family(self) -> list[ThreadKey]:
        """The thread and those that came of it, in the order in which they were created."""
        return [key for key in self._world.judged() if self._is_ours(key)]

    def _is_ours(self, key: ThreadKey) -> bool:
        return self._world.story.root(key) == self.key

    # Answering

    async def answer(self) -> None:
        """Looks after what waits for a person, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for key in self._family():
                await self._answer(key)

    async def _answer(self, key: ThreadKey) -> None:
        state = self._seen(key)
        for call in list(state.calls.values()):
            if call.status == "waiting":
                await self._decide(key, call)
            elif call.status == "unknown":
                await self._resolve(key, call, state)
            elif call.status in {"dispatched", "running"} and call.pool == CLIENT_POOL:
                await self._finish(key, call)
        if state.plan.waiting is not None:
            await self._decide_plan(key, state.plan.waiting)
        is_held = state.turn is None and state.queue and all(item.held for item in state.queue)
        if self.is_mended and is_held and not self.is_closed and key not in self._closed:
            await self._post("inputs", {"mode": "queue", "text": f"input {self._commands}"}, key=key)

    async def _decide(self, key: ThreadKey, call: Call) -> None:
        rng = self._rng
        if not self.is_mended and rng.random() < 0.3:
            return  # later
        bodies = [self._decision(call)]
        if rng.random() < 0.25:
            bodies.append(self._decision(call))
        path = f"tool-calls/{call.call}/decision"
        people = (self._who, f"{self._tenant}/boss")
        await asyncio.gather(*[self._post(path, body, who, key) for body, who in zip(bodies, people, strict=False)])

    async def _decide_plan(self, key: ThreadKey, version: int) -> None:
        """Also of versions that a policy approves at this moment."""
        rng = self._rng
        if not self.is_mended and rng.random() < 0.3:
            return  # later
        path, people = f"plan/{version}/decision", (self._who, f"{self._tenant}/boss")
        bodies: list[dict[str, Any]] = [
            {"decision": "reject", "reason": "not like this"} if rng.random() < 0.25 else {"decision": "approve"}
            for _ in range(rng.choice([1, 1, 2]))
        ]
        await asyncio.gather(*[self._post(path, body, who, key) for body, who in zip(bodies, people, strict=False)])

    def _decision(self, call: Call) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.2:
            return {"decision": "deny", "call_hash": call.call_hash, "reason": "no"}
        body: dict[str, Any] = {"decision": "approve", "call_hash": call.call_hash}
        drawn = rng.random()
        if drawn < 0.15:
            edited = {"seconds": 0, "n": rng.choice([1, 2, 3])}
            body["args"] = OTHER_ARGUMENTS.get(call.tool, edited)
        elif drawn < 0.3:
            body["scope"] = rng.choice(["turn", "thread"])
            if rng.random() < 0.5:
                body["tool"] = call.tool
        elif drawn < 0.35:
            body["call_hash"] = call_hash("another", call.args)
        return body

    async def _finish(self, key: ThreadKey, call: Call) -> None:
        """As the customer's backend, that may do it twice, and not always alike."""
        if not self.is_mended and self._rng.random() < 0.4:
            return
        path = f"tool-calls/{call.call}/result"
        bodies = [
            {"outcome": "succeeded", "result": self._rng.choice([1, 2])} for _ in range(self._rng.choice([1, 1, 2]))
        ]
        await asyncio.gather(*[self._post(path, body, key=key) for body in bodies])

    async def _resolve(self, key: ThreadKey, call: Call, state: ThreadState) -> None:
        """As somebody who looks into the ledger, once nothing of it runs any more."""
        patience = 0.9 if call.effect == "reconcilable" else 0 if self.is_mended else 0.3
        if self._is_running(key, call.call) or self._rng.random() < patience:
            return
        happened = any(run.effects for run in self._world.ledger.of(str(key), call.call))
        decision = "succeeded"
        if not happened:
            is_open = state.turn is not None and state.turn.turn == call.turn and state.turn.cancelling is None
            again = ["again"] * (6 if self._plan.hasty else 1) if is_open else []
            decision = self._rng.choice(["failed", "failed", "abandoned", *again])
        body = {"decision": decision, "attempt": call.attempt, "note": "the ledger says so"}
        await self._post(f"tool-calls/{call.call}/resolution", body, key=key)

    # In haste

    def _react(self, record: Record, verdict: Verdict, state: ThreadState) -> None:
        """To what was just stored, before those who work on it have read it; or in the belief of what was before it."""
        if not self._is_ours(record.key) or verdict.effect != "applied" or self.is_mended:
            return
        key = record.key
        match record.data:
            case ToolCallLost(call=call, attempt=attempt) if attempt > 1 and state.calls[call].status == "unknown":
                body = {"decision": "again", "attempt": attempt - 1, "note": "seen some time ago"}
                boss = f"{self._tenant}/boss"
                self._perhaps(0.7, partial(self._post, f"tool-calls/{call}/resolution", body, boss, key))
            case ToolCallLost(call=call) if state.turn is not None and not state.calls[call].settled:
                self._perhaps(0.3, partial(self._post, f"turns/{state.turn.turn}/cancel", {}, None, key))
            case ContextCompactionRequested() if state.turn is None and state.last_turn:
                body = {"to_turn": self._rng.randint(0, state.last_turn - 1)}
                self._perhaps(0.4, partial(self._post, "rewind", body, None, key))
            case InputSubmitted() if state.turn is None:
                body = {"config": {"instructions": f"since {state.seq}"}}
                self._perhaps(0.3, partial(self._send, "PATCH", "", body, None, key))
            case StepFinished() if state.turn is not None and key == self.key:
                self._perhaps(0.2, partial(self._submit, {"mode": "steer"}))
            case _:
                pass

    def _perhaps(self, probability: float, act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if self._rng.random() < probability:
            self._world.background(act())

    def _is_running(self, key: ThreadKey, call: str) -> bool:
        alive = {process.owner for process in self._world.processes if process.is_alive}
        runs = self._world.ledger.of(str(key), call)
        return any(run.ended is None and run.executor in alive for run in runs)
