"""What goes wrong: one victim every few seconds is killed, or stopped for longer than a lease; two at most at once."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping

from services.cli.local.supervisor import ServiceError
from tests.chaos.system import LEASE_SECONDS, Victim

MEAN_SECONDS = 3.0
LEAST_SECONDS = 0.3
STOP_SHARE = 0.35
STOP_SECONDS = (LEASE_SECONDS + 1.0, LEASE_SECONDS + 4.0)
VICTIMS_AT_ONCE = 2
STORE_WEIGHT = 0.7
"""Of Kafka and Postgres, against 1 of each instance of a service: they take seconds to come back."""
STORES = frozenset({"kafka", "postgres"})

OnKill = Callable[[str], None]


class Faults:
    def __init__(self, victims: Mapping[str, Victim], rng: random.Random, on_kill: OnKill) -> None:
        """`on_kill` is told the victim just before it is killed."""
        self._victims = victims
        self._rng = rng
        self._on_kill = on_kill
        self._down: set[str] = set()
        self._free = asyncio.Event()
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Faults for so long; returns when every victim is up again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        due = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Faults that had to wait for a free place come as soon as there is one, so that the mean is kept.
                due += max(LEAST_SECONDS, self._rng.expovariate(1 / MEAN_SECONDS))
                await asyncio.sleep(max(LEAST_SECONDS, min(due, end) - loop.time()))
                while len(self._down) >= VICTIMS_AT_ONCE and loop.time() < end:
                    self._free.clear()
                    await self._free.wait()
                if loop.time() >= end:
                    return
                name = self._choose()
                self._down.add(name)
                tasks.create_task(self._hurt(name), name=f"fault at {name}")

    def counts(self) -> dict[str, int]:
        """By victim."""
        return {name: self.kills[name] + self.stops[name] for name in sorted(self._victims)}

    def _choose(self) -> str:
        names = [name for name in sorted(self._victims) if name not in self._down]
        return self._rng.choices(names, [STORE_WEIGHT if name in STORES else 1.0 for name in names])[0]

    async def _hurt(self, name: str) -> None:
        victim = self._victims[name]
        is_stop = self._rng.random() < STOP_SHARE
        stop_seconds = self._rng.uniform(*STOP_SECONDS)
        try:
            await victim.wait_ready()
            if is_stop:
                victim.stop()
                self.stops[name] += 1
                try:
                    await asyncio.sleep(stop_seconds)
                finally:
                    victim.go_on()
            else:
                self._on_kill(name)
                victim.kill()
                self.kills[name] += 1
                await asyncio.sleep(LEAST_SECONDS)  # the supervisor has to notice it
            await victim.wait_ready()
        except ServiceError:
            pass  # it had ended by itself; its supervisor starts it again
        finally:
            self._down.discard(name)
            self._free.set()
