"""When to look at something again: one heap, one sleeping task."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from services.chassis.clock import Clock

SLEEP_SECONDS_MAX = 60.0


class Timers:
    """Callbacks at times. A callback that has become pointless must notice that itself: there is no cancelling."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = asyncio.Event()

    def at(self, time_ms: int, callback: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_ms, next(self._numbers), callback))
        if self._heap[0][0] == time_ms:
            self._changed.set()

    def __len__(self) -> int:
        return len(self._heap)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._fire()
            wait = SLEEP_SECONDS_MAX
            if self._heap:
                wait = min(wait, (self._heap[0][0] - self._clock.now_ms()) / 1000)
            self._changed.clear()
            try:
                async with asyncio.timeout(max(wait, 0.001)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _fire(self) -> None:
        now = self._clock.now_ms()
        while self._heap and self._heap[0][0] <= now:
            _, _, callback = heapq.heappop(self._heap)
            callback()
