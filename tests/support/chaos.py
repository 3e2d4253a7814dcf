"""One seeded run of the services: clients, people, models and tools by chance, and everything that may go wrong.

`Chaos.run` lets it happen for a while, then mends everything and waits until all threads rest. What must hold then is
in `check`. The same seed gives the same run.
"""

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.config import Config
from schemas.events import (
    InputSubmitted,
    ToolCallApproved,
    ToolCallDenied,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.ids import ThreadKey
from schemas.state import Call, ThreadState
from services.chassis.log import LogError
from services.runtime.model import AnswerItem, Delta, EmitDelta, ModelAnswer, ModelCall, ModelFailure, ModelRequest
from tests.support.ledger import EFFECTS
from tests.support.service_world import ExecutorProcess, Judged, Process, RuntimeProcess, World, WorldOptions
from tests.support.simulated_log import Faults
from tests.support.virtual_time import run_virtual

STEPS_MOST = 3
REST_SECONDS = 1_200
START_SECONDS = 30


class SeededModel:
    """Answers by chance: text, calls of every effect class, failures. It refuses what a provider would refuse."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.problems: list[str] = []

    async def answer(self, request: ModelRequest, emit: EmitDelta, /) -> ModelAnswer | ModelFailure:
        rng = self._rng
        self._check(request.items)
        await asyncio.sleep(rng.choice([0, 0.05, 0.5, 2]))
        if rng.random() < 0.08:
            return ModelFailure("overloaded", retriable=True)
        emit(Delta("text", "well"))
        steps = sum(item["kind"] == "tool_call" for item in request.items[_last_user(request.items) :])
        if steps < STEPS_MOST and rng.random() < 0.7:
            return ModelAnswer([AnswerItem("text", "let me see")], [self._call() for _ in range(rng.randint(1, 3))])
        return ModelAnswer([AnswerItem("text", f"answer {rng.random()}")])

    def _call(self) -> ModelCall:
        rng = self._rng
        if rng.random() < 0.05:
            return ModelCall("no-such-tool", {})
        if rng.random() < 0.05:
            return ModelCall("unsafe", {}, malformed="{oops")
        args = {"seconds": rng.choice([0, 0, 0.2, 2, 5]), "fails": rng.random() < 0.1, "n": rng.random()}
        return ModelCall(rng.choice(EFFECTS), args)

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


def _last_user(items: Sequence[Mapping[str, object]]) -> int:
    users = [place for place, item in enumerate(items) if item["kind"] == "message" and item.get("role") == "user"]
    return users[-1] if users else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the seed decided."""

    threads: int
    inputs: int
    seconds: float
    partitions: int
    runtimes: int
    executors: int
    zombie_runtime: bool
    zombie_executor: bool
    idempotent: bool
    faults: bool
    moves_every: float

    @classmethod
    def drawn(cls, rng: random.Random) -> "Plan":
        return cls(
            threads=rng.randint(1, 4),
            inputs=rng.randint(1, 4),
            seconds=rng.choice([10, 20, 40]),
            partitions=rng.choice([1, 1, 2, 3]),
            runtimes=rng.choice([1, 1, 2]),
            executors=rng.choice([1, 1, 2]),
            zombie_runtime=rng.random() < 0.2,
            zombie_executor=rng.random() < 0.2,
            idempotent=rng.random() < 0.5,
            faults=rng.random() < 0.6,
            moves_every=rng.choice([1, 3, 8]),
        )


class Chaos:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self.plan = Plan.drawn(self._rng)
        self._model = SeededModel(random.Random(seed + 1))
        self.world = World(
            self._model,
            options=WorldOptions(partitions=self.plan.partitions),
            faults=self._faults() if self.plan.faults else None,
            idempotent=self.plan.idempotent,
        )
        self._keys: list[ThreadKey] = []
        self._submitted: list[tuple[ThreadKey, str]] = []
        self._crashed: set[str] = set()
        """Owners of processes that ended without handing over, or that were told to stop."""
        self._gone: set[str] = set()
        """Owners of all that did not live to the end: also those that the log refused."""
        self._starting: set[str] = set()
        self._answers = 0
        self._is_mended = False

    def _faults(self) -> Faults:
        rng = self._rng
        return Faults(
            self.seed,
            ack_lost=rng.choice([0, 0.02, 0.1]),
            request_lost=rng.choice([0, 0.02, 0.1]),
            late=rng.choice([0, 0.02, 0.1]),
            append_seconds_max=rng.choice([0, 0.01, 0.2]),
            fetch_seconds_max=rng.choice([0, 0.01, 0.2]),
            poll_records_max=rng.choice([0, 1, 3]),
            rebalance_seconds_max=rng.choice([0, 1]),
        )

    async def run(self) -> None:
        world, plan = self.world, self.plan
        await world.open(self._rng.choice([0.05, 0.5, 3]))
        for number in range(plan.runtimes):
            await self._start("runtime", f"r{number}")
        for number in range(plan.executors):
            await self._start("executor", f"e{number}")
        if plan.zombie_runtime:
            await self._start("runtime", "zombie-r", "zombies-r")
        if plan.zombie_executor:
            await self._start("executor", "zombie-e", "zombies-e")
        clients = [world.background(self._client(number)) for number in range(plan.threads)]
        people = world.background(self._people())
        mover = world.background(self._moves())
        await asyncio.sleep(plan.seconds)
        mover.cancel()
        await asyncio.gather(mover, return_exceptions=True)
        await self._mend()
        await asyncio.gather(*clients)
        for key in self._keys:
            await self._submit(key, "last")
        await world.until(self._rests, REST_SECONDS, every=2)
        people.cancel()
        world.check()
        self._gone = {process.owner for process in world.processes if not process.is_alive}
        self._check_processes()
        await world.close()

    # What happens

    async def _client(self, number: int) -> None:
        rng, world = random.Random(f"{self.seed} {number}"), self.world
        await asyncio.sleep(rng.choice([0, 0, rng.uniform(0, self.plan.seconds)]))
        config = Config(
            model="seeded",
            approval=rng.choice(["never", "never", "on_effect"]),
            on_recovery=rng.choice(["resume", "resume", "interrupt"]),
            on_unknown=rng.choice(["wait", "end"]),
            one_turn_per_input=rng.random() < 0.7,
        )
        key = await world.create(f"t{number}", config)
        self._keys.append(key)
        for place in range(self.plan.inputs):
            await self._submit(key, f"i{place}", rng.choice(["queue", "queue", "steer", "interrupt"]))
            await asyncio.sleep(rng.uniform(0, self.plan.seconds / self.plan.inputs))
            if rng.random() < 0.2:
                turn = max(1, self._state(key).last_turn)
                await world.command(key, TurnCancelRequested(turn=turn, reason="user"), f"cancel {key} {place}")

    async def _submit(self, key: ThreadKey, name: str, mode: str = "queue") -> None:
        await self.world.submit(key, name, mode)  # type: ignore[arg-type]  # drawn from the modes
        self._submitted.append((key, name))

    async def _people(self) -> None:
        """Answer approvals, look into the ledger for what is unknown, and in the end release what a recovery held."""
        while True:
            await asyncio.sleep(1)
            for key in self._keys:
                state = self._state(key)
                for call in list(state.calls.values()):
                    await self._answer(key, call)
                if self._is_mended and state.turn is None and state.queue and all(item.held for item in state.queue):
                    self._answers += 1
                    await self._submit(key, f"nudge {self._answers}")

    async def _answer(self, key: ThreadKey, call: Call) -> None:
        self._answers += 1
        name = f"answer {self._answers}"
        if call.status == "waiting":
            if self._rng.random() < 0.8:
                decision = ToolCallApproved(call=call.call, call_hash=call.call_hash, by="user:ann")
                await self.world.command(key, decision, name)
            else:
                denial = ToolCallDenied(call=call.call, call_hash=call.call_hash, by="user:ann", reason="no")
                await self.world.command(key, denial, name)
        elif call.status == "unknown" and not self._is_running(key, call.call):
            happened = any(run.effects for run in self.world.ledger.of(str(key), call.call))
            resolved = ToolCallResolved(
                call=call.call, attempt=call.attempt, decision="succeeded" if happened else "failed"
            )
            await self.world.command(key, resolved, name)

    def _is_running(self, key: ThreadKey, call: str) -> bool:
        alive = {process.owner for process in self.world.processes if process.is_alive}
        return any(run.ended is None and run.executor in alive for run in self.world.ledger.of(str(key), call))

    def _state(self, key: ThreadKey) -> ThreadState:
        return self.world.store.state(key, self.world.partition_of(key))

    # What goes wrong

    async def _moves(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0, 2 * self.plan.moves_every))
            moves = [self._crash, self._crash, self._stop, self._join, self._join, self._database, self._broker]
            await self._rng.choice(moves)()

    async def _crash(self) -> None:
        process = self._choose()
        if process is not None:
            self._crashed.add(process.owner)
            process.crash()
            self._restart_later(process)

    async def _stop(self) -> None:
        process = self._choose()
        if process is not None and process.is_up:
            self._crashed.add(process.owner)
            self.world.background(self._stop_and_restart(process))

    async def _stop_and_restart(self, process: Process) -> None:
        await process.stop()
        self._restart_later(process)

    async def _join(self) -> None:
        """Under a name that sorts first or last, so that partitions move; it may stay only for a while."""
        kind = self._rng.choice(["runtime", "executor"])
        name = f"{self._rng.choice('ax')}-{kind}-{len(self.world.processes)}"
        if len([each for each in self.world.processes if each.is_alive]) < 6:
            self._start_later(kind, name, 0)
            if self._rng.random() < 0.7:
                self.world.background(self._leave(name, self._rng.uniform(0.5, 4)))

    async def _leave(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for process in [each for each in self.world.processes if each.is_alive and each.is_up and each.name == name]:
            self._crashed.add(process.owner)
            await process.stop()

    async def _database(self) -> None:
        store = self.world.store
        if self._rng.random() < 0.5:
            store.is_away = True
            await asyncio.sleep(self._rng.choice([0.5, 3, 15]))
            store.is_away = False
        else:
            partition = self._rng.randrange(self.plan.partitions)
            store.go_back(partition, self._rng.randint(0, store.next_offset(partition)))

    async def _broker(self) -> None:
        self.world.broker.is_away = True
        await asyncio.sleep(self._rng.choice([0.1, 1]))
        self.world.broker.come_back()

    def _choose(self) -> Process | None:
        alive = [process for process in self.world.processes if process.is_alive]
        return self._rng.choice(alive) if alive else None

    def _restart_later(self, process: Process) -> None:
        kind = "runtime" if isinstance(process, RuntimeProcess) else "executor"
        group = None if not process.name.startswith("zombie") else f"zombies-{process.name[-1]}"
        self._start_later(kind, process.name, self._rng.choice([0, 0.3, 4, 10]), group)

    def _start_later(self, kind: str, name: str, seconds: float, group: str | None = None) -> None:
        async def start() -> None:
            await asyncio.sleep(seconds)
            await self._start(kind, name, group)

        self.world.background(start())

    async def _start(self, kind: str, name: str, group: str | None = None) -> None:
        """As a supervisor does: again, until it is up."""
        if name in self._starting or any(each.name == name and each.is_alive for each in self.world.processes):
            return
        self._starting.add(name)
        instance_id = name if self._rng.random() < 0.5 else None
        for _ in range(1_000):
            process = (RuntimeProcess if kind == "runtime" else ExecutorProcess)(self.world, name)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await process.start(instance_id, group or kind)
                break
            except (LogError, TimeoutError):  # also where it was crashed while it started
                process.crash()
                await asyncio.sleep(0.5)
        self._starting.discard(name)

    async def _mend(self) -> None:
        world = self.world
        world.store.is_away = False
        world.broker.come_back()
        world.broker.faults = Faults()
        self._is_mended = True
        for process in [each for each in world.processes if each.is_alive and each.name.startswith("zombie")]:
            self._crashed.add(process.owner)
            process.crash()
        world.background(self._supervise())

    async def _supervise(self) -> None:
        while True:
            for kind, name in (("runtime", "r0"), ("executor", "e0")):
                await self._start(kind, name)
            await asyncio.sleep(5)

    def _rests(self) -> bool:
        judged = self.world.judged()
        return all(_is_at_rest(judged[key].state) for key in self._keys)

    # What must hold

    def check(self) -> None:
        assert not self._model.problems, self._model.problems[:3]
        judged = self.world.judged()
        for key, name in self._submitted:
            assert _times_taken(judged[key], name) == 1, f"input {name} of {key}"
        for key, thread in judged.items():
            started = [event.turn for event in thread.applied(TurnStarted)]
            ended = [event.turn for event in thread.applied(TurnEnded)]
            assert started == ended == list(range(1, len(started) + 1)), f"turns of {key}: {started}, {ended}"
            self._check_calls(key, thread)

    def _check_calls(self, key: ThreadKey, thread: Judged) -> None:
        ends: dict[str, str] = {}
        tools: dict[str, str] = {}
        for _, _, state in thread.records:
            for name, call in state.calls.items():
                tools[name] = call.tool
                if call.outcome is not None:
                    ends[name] = call.outcome
        effects = self.world.ledger.effects()
        for name, tool in tools.items():
            count = effects.get((str(key), name), 0)
            assert name in ends, f"{key} {name} is never settled"
            if tool in {"unsafe", "reconcilable"}:
                assert count <= 1, f"{key} {name}: {tool}, and done {count} times"
            if ends[name] == "succeeded" and tool != "pure":
                assert count >= 1, f"{key} {name} succeeded, and was not done"
        was_unknown = {
            name for _, _, state in thread.records for name, call in state.calls.items() if call.status == "unknown"
        }
        for (thread_name, name), count in effects.items():
            if thread_name == str(key) and count:
                assert ends[name] == "succeeded" or name in was_unknown, f"{key} {name} was done, and is {ends[name]}"
        self._check_unknown(key, thread, was_unknown)

    def _check_unknown(self, key: ThreadKey, thread: Judged, was_unknown: set[str]) -> None:
        """Only where the executor of a claimed attempt was cut off, or killed the tool midway."""
        cut_off = {
            event.call for event in thread.applied(ToolCallStarted) if event.executor in self._crashed | self._gone
        }
        killed = {run.call for run in self.world.ledger.runs if run.thread == str(key) and run.cancelled}
        lost = {event.call for event in thread.applied(ToolCallLost)}
        assert was_unknown <= lost, f"{key}: {was_unknown - lost} unknown, and never lost"
        assert was_unknown <= cut_off | killed, f"{key}: {was_unknown - cut_off - killed} unknown without a crash"

    def _check_processes(self) -> None:
        for process in self.world.processes:
            executor = getattr(process, "executor", None)
            if executor is not None and process.is_alive:
                assert executor._places.taken == 0, f"{process.owner} holds places of calls that ended"


def _is_at_rest(state: ThreadState) -> bool:
    return state.turn is None and not state.queue and not any(call.status == "unknown" for call in state.calls.values())


def _times_taken(thread: Judged, name: str) -> int:
    submitted = [event for event in thread.applied(InputSubmitted) if event.input == name]
    assert len(submitted) == 1, f"input {name} was submitted {len(submitted)} times"
    taken = 0
    before: tuple[str, ...] = ()
    for _, _, state in thread.records:
        queued = tuple(item.input for item in state.queue)
        taken += name in before and name not in queued
        before = queued
    return taken


def play(seed: int) -> None:
    """Raises AssertionError, with the seed, for what must not be."""

    async def main() -> None:
        chaos = Chaos(seed)
        try:
            await chaos.run()
            chaos.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} {error} ({chaos.plan})") from error

    run_virtual(main())


if __name__ == "__main__":
    play(int(sys.argv[1]))
