"""How long after its acknowledgement a record is in the views: what a client that reads its own write waits for.

Measured apart from the sessions' own times, because looking at the views takes the time of the same cores.
"""

import asyncio
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

import asyncpg

from bench.sessions import one_session
from services.client.client import Accepted, ThreadlogClient

LOOK_SECONDS = 0.003
SHOWN_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Delay:
    p50_ms: float
    p99_ms: float
    samples: int


async def measure_delay(dsn: str, client: ThreadlogClient, concurrent: int, sessions: int) -> Delay:
    """Measure the delays of the first record of each session, under the load of them all."""
    left = iter(range(sessions))
    connection = await asyncpg.connect(dsn)
    try:
        views = _Views(connection)

        async def work() -> None:
            for _ in left:
                await one_session(client, views.acknowledged)

        watching = asyncio.create_task(views.watch())
        try:
            await asyncio.gather(*[work() for _ in range(concurrent)])
            await views.all_shown()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    finally:
        await connection.close()
    seconds = sorted(views.seconds)
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return Delay(1000 * statistics.median(seconds), 1000 * p99, len(seconds))


class _Views:
    """Looks how far they are as long as somebody waits for a record."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.seconds: list[float] = []
        self._connection = connection
        self._waiting: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """Partition → offsets, and when they were acknowledged."""
        self._something_waits = asyncio.Event()

    def acknowledged(self, accepted: Accepted) -> None:
        position = accepted.body["position"]
        assert isinstance(position, dict)
        self._waiting[int(str(position["partition"]))].append((int(str(position["offset"])), time.perf_counter()))
        self._something_waits.set()

    async def watch(self) -> None:
        while True:
            await self._something_waits.wait()
            rows = await self._connection.fetch('select "partition", next_offset from views.positions')
            now = time.perf_counter()
            for partition, next_offset in rows:
                waiting = self._waiting.pop(partition, [])
                self.seconds += [now - since for offset, since in waiting if offset < next_offset]
                if left := [(offset, since) for offset, since in waiting if offset >= next_offset]:
                    self._waiting[partition] = left
            if not self._waiting:
                self._something_waits.clear()
            await asyncio.sleep(LOOK_SECONDS)

    async def all_shown(self) -> None:
        async with asyncio.timeout(SHOWN_SECONDS_MAX):
            while self._waiting:  # noqa: ASYNC110  # the watching task is what empties it
                await asyncio.sleep(LOOK_SECONDS)
