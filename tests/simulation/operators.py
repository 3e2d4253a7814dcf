"""Who looks after the views: builds them anew beside the live ones, goes back to a generation that was kept, drops one, or
the whole database. Each command is a process of its own, that may die at any moment as all others.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import asyncpg

from services.chassis.artifacts.store import ArtifactError
from services.chassis.errors import SetupError
from services.chassis.log.port import LogError
from services.projector.generations.errors import ProjectorError
from services.projector.rebuilding.generation_list import remove_generation, use_generation
from services.projector.rebuilding.progress import Progress
from services.projector.rebuilding.rebuild import rebuild
from services.projector.settings import ProjectorSettings
from tests.simulation.plan import Plan
from tests.simulation.processes import projector_settings
from tests.support.memory.connection import MemoryConnection
from tests.support.memory.database import MemoryDatabase
from tests.support.simulated.virtual_time import HOST
from tests.support.worlds.services import Process

if TYPE_CHECKING:
    from tests.simulation.world import SimulationWorld

REFUSED = (ProjectorError, LogError, SetupError, ArtifactError, OSError, asyncpg.PostgresError)
"""What a command may end with, and say so."""
READ_SECONDS = 0.13
Command = Callable[["CommandProcess"], Awaitable[object]]


class Connection(Protocol):
    def terminate(self) -> None: ...


class CommandProcess(Process):
    """One command of `threadlog`. Its connections end with it."""

    world: "SimulationWorld"

    def __init__(self, world: "SimulationWorld", name: str, command: Command) -> None:
        super().__init__(world, name)
        self._command = command
        self._connections: list[Connection] = []
        self.gone.add_done_callback(lambda _: self._end_connections())

    def start(self) -> None:
        self.is_up = True
        self.spawn(self._run(), "command")

    def connected(self, connection: "Connection") -> None:
        self._connections.append(connection)

    def told(self, progress: Progress) -> None:
        if progress.phase != "reading":
            self.world.story.tell(self.owner, f"{progress.phase} generation {progress.generation}")

    async def _run(self) -> None:
        try:
            await self._command(self)
            self.world.story.tell(self.owner, "has done it")
            self.world.story.count(self.name)
        except REFUSED as error:
            self.world.story.tell(self.owner, f"gives up: {type(error).__name__} {error}")
        if self.is_alive:
            self.is_alive = False
            await self.log.close()
            self.gone.set_result(None)

    async def _stop(self) -> None:
        """By the first signal it ends like this: what was built stays."""

    def _end_connections(self) -> None:
        for connection in self._connections:
            connection.terminate()


def connections_to_processes(world: "SimulationWorld", connection: MemoryConnection) -> None:
    host = HOST.get()
    for process in world.processes:
        if process.host is host and isinstance(process, CommandProcess):
            process.connected(connection)


class Operators:
    def __init__(self, world: "SimulationWorld", plan: Plan, dsn: str, rng: random.Random) -> None:
        self._world = world
        self._plan = plan
        self._dsn = dsn
        self._rng = rng
        self._settings: ProjectorSettings = projector_settings("rebuild")

    async def run(self) -> None:
        """While things go wrong."""
        rng = self._rng
        acts = [*[self._rebuild] * 5, *[self._use] * 2, self._remove, self._drop_all]
        for _ in range(self._plan.view_commands):
            await asyncio.sleep(rng.uniform(0, 2 * self._plan.seconds / (self._plan.view_commands + 1)))
            rng.choice(acts)()

    def rebuild(self, *, keep_old: bool = False, restart: bool = False) -> CommandProcess:
        async def work(process: CommandProcess) -> object:
            log, told = process.log, process.told
            return await rebuild(log, self._dsn, self._settings, told, keep_old=keep_old, restart=restart)

        return self._start("rebuild", work, f"keep_old={keep_old} restart={restart}")

    def _rebuild(self) -> None:
        self.rebuild(keep_old=self._rng.random() < 0.6, restart=self._rng.random() < 0.2)

    def _use(self) -> None:
        number = self._any_generation()
        if number is not None:

            async def work(process: CommandProcess) -> object:
                return await use_generation(process.log, self._dsn, self._settings, process.told, number)

            self._start("use", work, f"generation {number}")

    def _remove(self) -> None:
        number = self._any_generation()
        if number is not None:
            self._start("remove", lambda _: remove_generation(self._dsn, self._settings, number), f"{number}")

    def _drop_all(self) -> None:
        self._world.story.tell("database", "is dropped altogether")
        self._world.store.drop(altogether=True)

    def _start(self, name: str, command: Command, how: str) -> CommandProcess:
        process = CommandProcess(self._world, name, command)
        self._world.story.tell(process.owner, f"begins: {how}")
        process.start()
        return process

    def _any_generation(self) -> int | None:
        numbers = sorted(self._world.store.generations)
        return self._rng.choice(numbers) if numbers else None


class Seen(NamedTuple):
    generation: int
    positions: dict[int, int]
    events: dict[int, int]


class ViewsReader:
    """Reads through everything: one answer is of one generation, whole, and never of earlier than the one before."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._floor: dict[int, int] = {}
        self._went_back = 0
        self.answers = 0
        self.problems: list[str] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(READ_SECONDS)
            self.look()

    def look(self) -> None:
        database = self._database
        made = database.made_live
        if made is None or database.is_away:
            return
        if database.went_back != self._went_back:
            self._floor, self._went_back = {}, database.went_back
        positions = {partition: at.next_offset for partition, at in made.tables.positions.items()}
        events: dict[int, int] = dict.fromkeys(positions, 0)
        for rows in made.tables.groups("events").values():
            first: Any = next(iter(rows.values()), None)
            if first is not None:
                events[first[3]] = events.get(first[3], 0) + len(rows)
        seen = Seen(made.generation.number, positions, events)
        self.answers += 1
        if events != positions:
            self.problems.append(f"{seen} is not whole")
        behind = {p: at for p, at in self._floor.items() if positions.get(p, 0) < at}
        if behind:
            self.problems.append(f"{seen} is behind {behind}, which was seen before")
        self._floor = positions
