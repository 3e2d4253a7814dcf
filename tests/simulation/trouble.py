"""What goes wrong with processes, the database and the broker, for a while; then everything is mended.

A process is killed, or stands still, at once or after one of its next steps: between any two awaits.
"""

import asyncio
import random
from collections.abc import Callable

from schemas.codec import Record
from services.chassis.log.port import LogError
from services.projector.generations.errors import ProjectorError
from tests.simulation.model import SeededModel
from tests.simulation.plan import Plan
from tests.simulation.world import KINDS, SimulationWorld
from tests.support.processes.ledger import Moment, ToolRun
from tests.support.simulated.log import Faults
from tests.support.simulated.virtual_time import HOST
from tests.support.worlds.services import ExecutorProcess, Process, RuntimeProcess

START_SECONDS = 20
START_AGAIN_SECONDS = 0.5
SUPERVISE_SECONDS = 3
STEPS_MOST = 80
ALIVE_MOST = 9


class Trouble:
    def __init__(self, world: SimulationWorld, model: SeededModel, plan: Plan, rng: random.Random) -> None:
        self.cut_off: set[str] = set()
        """Owners of processes that were killed, or stood still: what they ran may be unknown."""
        self.stopped: set[str] = set()
        self.stood_still: set[str] = set()
        self._world = world
        self._plan = plan
        self._rng = rng
        self._wanted: dict[str, tuple[str, str | None]] = {}
        """Name of each process that a supervisor starts again: its kind and its group."""
        self._starting: set[str] = set()
        self._is_mended = False
        self._names = 0
        world.ledger.at_moment = self._at_effect
        model.at_answer = self._at_answer
        world.artifacts.at_put = self._at_put
        world.at_record = self._at_record

    async def start_all(self) -> None:
        plan = self._plan
        for kind, count in (
            ("projector", plan.projectors),
            ("runtime", plan.runtimes),
            ("executor", plan.executors),
            ("ingest", plan.ingests),
            ("rollups", plan.rollups),
        ):
            for number in range(count):
                self._want(kind, f"{kind}{number}")
        if plan.zombie_runtime:
            self._want("runtime", "zombie-runtime", "zombie-runtimes")
        if plan.zombie_executor:
            self._want("executor", "zombie-executor", "zombie-executors")

    def _want(self, kind: str, name: str, group: str | None = None, seconds: float = 0) -> None:
        self._wanted[name] = (kind, group)
        self._world.background(self._start_later(name, seconds))

    async def _start_later(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._start(name)

    async def _start(self, name: str, *, beside: bool = False) -> None:
        """As a supervisor does: again, until it is up."""
        if name not in self._wanted or name in self._starting or (self._is_there(name) and not beside):
            return
        self._starting.add(name)
        kind, group = self._wanted[name]
        instance_id = name if self._rng.random() < 0.6 else None
        while name in self._wanted:
            process = KINDS[kind](self._world, name)
            self._world.story.tell(process.owner, "starts")
            try:
                async with asyncio.timeout(START_SECONDS):
                    await process.start(instance_id, group or kind)  # type: ignore[attr-defined]  # each kind has it
                break
            except (LogError, ProjectorError, TimeoutError) as error:  # also where it is killed meanwhile
                self._world.story.tell(process.owner, f"does not start: {error}")
                process.crash()
                await asyncio.sleep(START_AGAIN_SECONDS)
        self._starting.discard(name)

    def _is_there(self, name: str) -> bool:
        return any(process.name == name and process.is_alive for process in self._world.processes)

    # What goes wrong

    async def run(self) -> None:
        rng = self._rng
        moves = [
            *[self._crash] * 4,
            *[self._pause] * 4,
            *[self._stop] * 2,
            *[self._join] * 2,
            *[self._cut] * 2,
            *[self._database] * 2,
            self._broker,
            *[self._artifact_store] * (2 if self._plan.outputs else 0),
        ]
        while True:
            await asyncio.sleep(rng.uniform(0, 2 * self._plan.moves_every))
            await rng.choice(moves)()

    async def _crash(self) -> None:
        process = self._choose()
        if process is not None:
            self._soon(process, lambda: self._kill(process))

    async def _pause(self) -> None:
        process = self._choose()
        if process is not None:
            seconds = self._rng.choice([0.3, 3, 7, 14])
            self._soon(process, lambda: self._stand_still(process, seconds))

    def _soon(self, process: Process, act: Callable[[], None]) -> None:
        """At once, or after one of its next steps."""
        if self._rng.random() < 0.4:
            act()
        else:
            process.host.on_step = act
            process.host.stop_at = process.host.steps + self._rng.randint(1, STEPS_MOST)

    def _kill(self, process: Process) -> None:
        if not process.is_alive:
            return
        self._world.story.tell(process.owner, f"is killed after step {process.host.steps}")
        self._world.story.count("killed")
        self.cut_off.add(process.owner)
        process.crash()
        if process.name in self._wanted:
            self._world.background(self._start_later(process.name, self._rng.choice([0, 0.3, 3, 8])))

    def _stand_still(self, process: Process, seconds: float) -> None:
        if not process.is_alive or process.is_paused or self._is_mended:
            return
        self._world.story.tell(process.owner, f"stands still after step {process.host.steps}, for {seconds} s")
        self._world.story.count("paused")
        self.cut_off.add(process.owner)
        self.stood_still.add(process.owner)
        process.pause()
        self._world.background(self._wake_later(process, seconds))
        if process.name in self._wanted and self._rng.random() < 0.2:
            self._world.background(self._replace(process.name, self._rng.uniform(0.2, 2)))

    async def _replace(self, name: str, seconds: float) -> None:
        """As a supervisor that takes one that stands still for dead: it wakes up beside its successor."""
        await asyncio.sleep(seconds)
        if any(process.name == name and process.is_paused for process in self._world.processes):
            await self._start(name, beside=True)

    async def _wake_later(self, process: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._wake(process)

    def _wake(self, process: Process) -> None:
        if process.is_paused:
            self._world.story.tell(process.owner, "goes on")
            process.resume()

    async def _cut(self) -> None:
        process = self._choose()
        if process is not None and process.is_up:
            seconds = self._rng.choice([0.3, 3, 8])
            self._world.story.tell(process.owner, f"loses the broker for {seconds} s")
            self._world.story.count("cut")
            self.cut_off.add(process.owner)
            process.log.cut()
            self._world.background(self._reach_again(process, seconds))

    async def _reach_again(self, process: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if process.is_alive:
            self._world.story.tell(process.owner, "reaches the broker again")
            process.log.mend()

    async def _stop(self) -> None:
        process = self._choose()
        if process is not None and process.is_up and not process.is_paused:
            self._world.background(self._stop_it(process, again=True))

    async def _stop_it(self, process: Process, *, again: bool) -> None:
        self._world.story.tell(process.owner, "is told to stop")
        self._world.story.count("stopped")
        self.stopped.add(process.owner)
        await process.stop()
        self._world.story.tell(process.owner, "has stopped")
        if again:
            await self._start_later(process.name, self._rng.choice([0, 1, 4]))

    async def _join(self) -> None:
        """Under a name that sorts first or last, so that partitions move; it stays only for a while."""
        if sum(process.is_alive for process in self._world.processes) >= ALIVE_MOST:
            return
        kind = self._rng.choice(["runtime", "executor", "projector", "ingest"])
        self._names += 1
        name = f"{self._rng.choice('ax')}-{kind}{self._names}"
        self._want(kind, name)
        self._world.background(self._leave(name, self._rng.uniform(0.5, 5)))

    async def _leave(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        del self._wanted[name]
        for process in [each for each in self._world.processes if each.name == name and each.is_alive]:
            if process.is_up:
                await self._stop_it(process, again=False)
            else:
                self._kill(process)

    async def _database(self) -> None:
        store, story, rng = self._world.store, self._world.story, self._rng
        drawn = rng.random()
        if drawn < 0.5:
            story.tell("database", "is away")
            store.is_away = True
            await asyncio.sleep(rng.choice([0.3, 2, 6]))
            story.tell("database", "is back")
            store.is_away = False
        elif drawn < 0.85:
            story.tell("database", f"loses {store.lose_last(rng.randint(1, 6))} commits")
        else:
            story.tell("database", "its views are dropped")
            store.drop()

    async def _broker(self) -> None:
        self._world.story.tell("broker", "is away")
        self._world.broker.is_away = True
        await asyncio.sleep(self._rng.choice([0.1, 1, 4]))
        self._world.story.tell("broker", "is back")
        self._world.broker.come_back()

    async def _artifact_store(self) -> None:
        self._world.story.tell("artifact store", "is away")
        self._world.artifacts.away = True
        await asyncio.sleep(self._rng.choice([0.3, 3, 8]))
        self._world.story.tell("artifact store", "is back")
        self._world.artifacts.away = False

    # At moments that matter

    async def _at_effect(self, _run: ToolRun, _moment: Moment) -> None:
        await self._here(self._plan.tool_trouble)

    async def _at_answer(self) -> None:
        await self._here(self._plan.model_trouble)

    async def _at_put(self) -> None:
        """An output is kept, and no event names it yet. What a client puts is put by no process."""
        if HOST.get() is not None:
            await self._here(self._plan.tool_trouble)

    async def _here(self, probability: float) -> None:
        """To the process in which this is awaited."""
        if self._is_mended or self._rng.random() >= probability:
            return
        host = HOST.get()
        self._strike(next(process for process in self._world.processes if process.host is host))
        await asyncio.sleep(0)

    def _at_record(self, record: Record) -> None:
        if self._is_mended or self._rng.random() >= self._plan.append_trouble:
            return
        instance = record.source.partition("/")[2]
        process = next((each for each in self._world.processes if each.name == instance and each.is_alive), None)
        if process is not None:
            self._strike(process)

    def _strike(self, process: Process) -> None:
        if self._rng.random() < 0.6:
            self._kill(process)
        else:
            self._stand_still(process, self._rng.choice([0.3, 3, 7, 14]))

    def _choose(self) -> Process | None:
        """Rather one of those that act by themselves."""
        alive = [process for process in self._world.processes if process.is_alive]
        acting = [process for process in alive if isinstance(process, RuntimeProcess | ExecutorProcess)]
        return self._rng.choice([*alive, *acting]) if alive else None

    # What mends it

    def mend(self) -> None:
        """From now on nothing goes wrong any more. Zombies die; one process of each kind is seen to."""
        world = self._world
        self._is_mended = True
        world.story.tell("world", "is mended")
        world.store.is_away = False
        world.artifacts.away = False
        world.broker.faults = Faults()
        world.broker.come_back()
        for process in world.processes:
            process.host.stop_at = -1
            self._wake(process)
            if process.name.startswith("zombie"):
                self._wanted.pop(process.name, None)
                self._kill(process)
        world.background(self._supervise())

    async def _supervise(self) -> None:
        while True:
            for kind in KINDS:
                await self._start(f"{kind}0")
            await asyncio.sleep(SUPERVISE_SECONDS)
