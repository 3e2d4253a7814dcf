"""`threadlog artifacts collect`, now and then, beside those who write: with a grace time so short that runs see its end.

An event counts as preceded by its objects where they were put, or found to be there, no longer than a grace time before
it was stored. An executor that stood still for longer is what the grace time of a real store is long for.
"""

import asyncio
import random
from contextlib import suppress
from typing import Final

from services.chassis.artifacts.care import collect
from services.chassis.artifacts.store import ArtifactsUnavailableError
from tests.simulation.model import ALIKE
from tests.simulation.operators import CommandProcess
from tests.simulation.people import TENANTS
from tests.simulation.plan import Plan
from tests.simulation.world import SimulationWorld
from tests.support.memory.references import ReferencesConnection, references_in_memory
from tests.support.processes.ledger import output_of

GRACE_SECONDS: Final = 5.0
VIEWS_SECONDS: Final = 4.0


class Collecting:
    def __init__(self, world: SimulationWorld, plan: Plan, rng: random.Random) -> None:
        self._world = world
        self._plan = plan
        self._rng = rng

    async def run(self) -> None:
        """While things go wrong."""
        for _ in range(self._plan.collects):
            self._world.background(self._upload())
            await asyncio.sleep(self._rng.uniform(0, 2 * self._plan.seconds / (self._plan.collects + 1)))
            self._start()

    async def last(self) -> None:
        """Once all rests: what nothing names becomes old enough, is set aside, and goes."""
        for _ in range(3 if self._plan.collects else 0):
            await asyncio.sleep(GRACE_SECONDS + 1)
            await self._start().gone

    async def _upload(self) -> None:
        """What a tool may leave as well, or nobody ever names."""
        rng, artifacts = self._rng, self._world.artifacts
        one = output_of(rng.randint(1, ALIKE), 0)
        with suppress(ArtifactsUnavailableError):
            assert isinstance(one.content, bytes)
            await artifacts.put(rng.choice(TENANTS), one.sha256, one.content, one.media_type)

    def _start(self) -> CommandProcess:
        world = self._world

        async def work(process: CommandProcess) -> object:
            connection = ReferencesConnection(world.store)
            process.connected(connection)
            references = references_in_memory(connection, process.log, VIEWS_SECONDS)
            done = await collect(world.artifacts, references, GRACE_SECONDS)
            world.story.tell(process.owner, str(done))
            if done.deleted:
                world.story.count("deleted")
            return done

        process = CommandProcess(world, "collect", work)
        world.story.tell(process.owner, "begins")
        process.start()
        return process
