"""All services, run on a simulated log, clock, database, model and outside world, under everything that may go wrong.

One run: things go wrong for a while, then everything is mended, and the world has to come to rest. The seed decides
everything: the same seed gives the same story, byte for byte.
"""

import asyncio
import gc
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import structlog

from schemas.state import ThreadState
from schemas.topics import THREAD_EFFECTS
from tests.simulation import artifacts as artifacts  # noqa: PLC0414  # its invariants are among those that are checked
from tests.simulation import derived
from tests.simulation import families as families  # noqa: PLC0414  # as the next ones
from tests.simulation import lineages as lineages  # noqa: PLC0414
from tests.simulation import meaning as meaning  # noqa: PLC0414  # its invariants are among those that are checked
from tests.simulation.clients import Clients, Watcher
from tests.simulation.collecting import Collecting
from tests.simulation.invariants import Broken, Run, ViolationError, check_all
from tests.simulation.memo import compiling_once, decoding_once
from tests.simulation.model import SeededModel
from tests.simulation.named_threads import NamedThreads
from tests.simulation.operators import CommandProcess, Operators, ViewsReader, connections_to_processes
from tests.simulation.people import Owner
from tests.simulation.plan import Plan
from tests.simulation.story import LINES_MAX, Story
from tests.simulation.trouble import Trouble
from tests.simulation.world import SimulationWorld
from tests.support.memory.connection import DATABASES, rebuilding_in_memory
from tests.support.simulated.virtual_time import run_virtual
from tests.support.worlds.services import ExecutorProcess, RuntimeProcess

REST_SECONDS = 300
"""Everything that waits for something has its own limit, and none of a few of them in a row is longer."""
LOOK_SECONDS = 0.5
DSN = "simulated"
EFFECTS = THREAD_EFFECTS.name


class Session:
    def __init__(self, seed: int, choices: dict[str, Any]) -> None:
        self.plan = Plan.drawn(random.Random(f"{seed} plan"), choices)
        self.story = Story(seed, str(self.plan))
        self._seed = seed

    async def run(self) -> None:
        """Raises ViolationError."""
        seed, plan = self._seed, self.plan
        asyncio.get_running_loop().set_exception_handler(self._failed)
        self._model = SeededModel(
            random.Random(f"{seed} model"),
            plan.tool_seconds,
            spawns=plan.spawns,
            plans=plan.plans,
            outputs=plan.outputs,
        )
        self.world = world = SimulationWorld(seed, plan, self._model, self.story)
        self._clients = Clients(world, random.Random(f"{seed} clients"))
        self._clients.told = NamedThreads(world, self._clients).see
        self._trouble = Trouble(world, self._model, plan, random.Random(f"{seed} trouble"))
        self._owners = [
            Owner(world, self._clients, plan, number, random.Random(f"{seed} owner {number}"))
            for number in range(plan.threads)
        ]
        self._operators = Operators(world, plan, DSN, random.Random(f"{seed} operators"))
        self._collecting = Collecting(world, plan, random.Random(f"{seed} collecting"))
        self._reader = ViewsReader(world.store)
        self._watchers: list[Watcher] = []
        DATABASES[DSN] = world.store
        try:
            with rebuilding_in_memory(partial(connections_to_processes, world)):
                await self._play()
        finally:
            del DATABASES[DSN]
            await world.close()

    async def _play(self) -> None:
        world, plan = self.world, self.plan
        await world.open()
        await self._trouble.start_all()
        living = [world.background(owner.live()) for owner in self._owners]
        answering = [world.background(owner.answer()) for owner in self._owners]
        watching = world.background(self._watch())
        reading = world.background(self._reader.run())
        going_wrong = [
            world.background(going) for going in (self._trouble.run(), self._operators.run(), self._collecting.run())
        ]
        await asyncio.sleep(plan.seconds)
        for task in going_wrong:
            task.cancel()
        await asyncio.gather(*going_wrong, return_exceptions=True)
        self._trouble.mend()
        self._model.is_mended = True
        for watcher in self._watchers:
            watcher.is_mended = True
        finishing = world.background(self._finish(living))
        await self._until_rest(finishing)
        for task in [*answering, watching]:
            task.cancel()
        await self._collecting.last()
        self._check()
        if plan.refused:
            await self._heal()
        reading.cancel()
        for problem in self._reader.problems:
            raise ViolationError("reads are whole and never go back", Broken(problem))

    async def _heal(self) -> None:
        """The views are built anew in a database that refuses nothing any more: from the beginning, because what was
        built before has left records out.
        """
        self.world.story.tell("database", "refuses nothing any more")
        self.world.store.refuses = None
        self._operators.rebuild(restart=True)
        await self._until(lambda: itertools.chain(self._views_behind(), self._commands_running()))
        for broken in derived.views_equal_a_fold_from_zero(self._run()):
            raise ViolationError("views heal", broken)

    async def _watch(self) -> None:
        """Each thread is followed from soon after it is there."""
        followed: set[object] = set()
        while True:
            for number, owner in enumerate(self._owners):
                if owner.key is not None and owner.key not in followed:
                    followed.add(owner.key)
                    for watcher_number in range(self.plan.watchers):
                        name = f"watcher{number}.{watcher_number}"
                        rng = random.Random(f"{self._seed} {name}")
                        watcher = Watcher(self.world, self._clients, owner.key, name, rng)
                        watcher.is_mended = self._model.is_mended
                        self._watchers.append(watcher)
                        self.world.background(watcher.run())
            await asyncio.sleep(LOOK_SECONDS)

    async def _finish(self, living: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*living)
        await asyncio.gather(*[owner.last() for owner in self._owners])

    async def _until_rest(self, finishing: asyncio.Task[None]) -> None:
        await self._until(lambda: self._waits(finishing))
        finishing.result()

    async def _until(self, what_waits: Callable[[], Iterator[str]]) -> None:
        """Nothing does."""
        deadline = asyncio.get_running_loop().time() + REST_SECONDS
        rested = 0
        while True:
            self._check_problems()
            waits = list(what_waits())
            rested = 0 if waits else rested + 1
            if rested == 2:
                return
            if waits and asyncio.get_running_loop().time() > deadline:
                raise ViolationError("every wait ends", Broken("; ".join(waits)))
            await asyncio.sleep(LOOK_SECONDS)

    def _waits(self, finishing: asyncio.Task[None]) -> Iterator[str]:
        """What has not come to rest."""
        world, judged = self.world, self.world.judged()
        if not finishing.done():
            yield "the clients have not finished"
        if self._clients.waiting:
            yield f"commands are not answered: {list(self._clients.waiting)}"
        for key, thread in judged.items():
            if not _is_at_rest(thread.state):
                yield f"{key} does not rest: {_brief(thread.state)}"
        for key, left in families.plans_under_way(self._run()):
            yield f"{key}: its plan is not over: {left}"
        for watcher in self._watchers:
            if watcher.seq != judged[watcher.key].state.seq:
                yield f"{watcher.name} has seen {watcher.seq} of {judged[watcher.key].state.seq}"
        yield from self._views_behind()
        yield from self._effects_behind()
        yield from self._windows_behind()
        yield from self._commands_running()
        for partition in range(world.options.partitions):
            for kind in (RuntimeProcess, ExecutorProcess):
                if not any(partition in process.loop.partitions for process in world.alive(kind) if process.is_up):  # type: ignore[attr-defined]  # both kinds have one
                    yield f"partition {partition} has no {kind.__name__}"

    def _views_behind(self) -> Iterator[str]:
        world = self.world
        for partition in range(world.options.partitions):
            if world.store.next_offset(partition) != world.end(partition):
                yield f"the views are at {world.store.next_offset(partition)} of {world.end(partition)}"

    def _commands_running(self) -> Iterator[str]:
        for process in self.world.alive(CommandProcess):
            yield f"{process.owner} has not ended"

    def _effects_behind(self) -> Iterator[str]:
        """Each record of a simulation has a seq, and thereby an effect."""
        for partition in range(self.world.options.partitions):
            told = len(derived.first_copies(self.world, partition))
            if told != self.world.end(partition):
                yield f"{told} effects of {self.world.end(partition)} are told"

    def _windows_behind(self) -> Iterator[str]:
        world = self.world
        for partition in range(world.options.partitions if self.plan.rollups else 0):
            at, end = world.store.window_positions.get(partition), world.broker.end(EFFECTS, partition)
            if end and (at is None or at.next_offset != end):
                yield f"the windows are at {at} of {end}"

    def _check(self) -> None:
        check_all(self._run())

    def _run(self) -> Run:
        trouble = self._trouble
        ended = {process.owner for process in self.world.processes if not process.is_alive}
        cut_off = trouble.cut_off | (ended - trouble.stopped)
        collects = self.plan.collects > 0
        return Run(self.world, self._model, self._clients, self._watchers, cut_off, trouble.stood_still, collects)

    def _check_problems(self) -> None:
        if self.world.problems:
            problem = self.world.problems[0]
            raise ViolationError("no process fails", Broken(f"{type(problem).__name__}: {problem}")) from problem

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would log: a callback that raised."""
        error = context.get("exception")
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.world.problems.append(error)


def _is_at_rest(state: ThreadState) -> bool:
    is_unknown = any(call.status == "unknown" for call in state.calls.values())
    compacts = state.compaction_requested and state.status == "active"
    return state.turn is None and not state.queue and not is_unknown and not compacts and state.status != "closing"


def _brief(state: ThreadState) -> str:
    turn = "no turn" if state.turn is None else f"turn {state.turn.turn} {state.turn.cancelling or ''}"
    calls = {call.call: call.status for call in state.calls.values() if not call.settled}
    step = "" if state.turn is None or state.turn.step is None else f"step {state.turn.step.status}"
    return f"{state.status}, {turn}, {step}, {len(state.queue)} queued, {calls}"


def play(seed: int, **choices: Any) -> Story:
    """Raises AssertionError, with the seed and its story, for what must not be. `choices` are fields of the `Plan` that
    the seed shall not decide.
    """
    session = Session(seed, choices)
    with _quiet(), decoding_once(), compiling_once():
        try:
            run_virtual(session.run())
        except Exception as error:
            thread = error.thread if isinstance(error, ViolationError) else None
            told = session.story.text(thread, LINES_MAX)
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n\n{told}") from error
    return session.story


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines; and no garbage is collected at times that a replay would not repeat. What the process has frozen stays
    frozen: a simulated rebuild freezes and unfreezes, as a real one does, and each collection would take ten times as long.
    """
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with patch.object(gc, "freeze", _nothing), patch.object(gc, "unfreeze", _nothing):
            yield
    finally:
        structlog.configure(**before)
        if was_collecting:
            gc.enable()


def _nothing() -> None:
    pass
