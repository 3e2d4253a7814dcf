"""When to look at something again: one heap, one sleeping task."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from services.chassis.clock import Clock

SLEEP_SECONDS_MAX = 60.0
CANCELLED_MIN = 100
"""So many cancelled timers, and more than wait, are swept out of the heap."""


class Timer:
    """One callback at one time. A cancelled one keeps nothing alive but itself, and is soon gone."""

    __slots__ = ("_timers", "callback", "time_ms")

    def __init__(self, timers: "Timers", time_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.time_ms = time_ms
        self.callback: Callable[[], None] | None = callback
        """None once it has fired or was cancelled."""

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.count_cancelled()


class Timers:
    """Callbacks at times, in the order of their times. What a callback raises ends `run`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0
        self._changed = asyncio.Event()

    def at(self, time_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, time_ms, callback)
        heapq.heappush(self._heap, (time_ms, next(self._numbers), timer))
        if self._heap[0][2] is timer:
            self._changed.set()
        return timer

    def __len__(self) -> int:
        """Of those that wait, and of cancelled ones that are not swept out yet."""
        return len(self._heap)

    def count_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

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
        """What a callback sets for now or earlier fires in the next round, so that a round has an end."""
        now = self._clock.now_ms()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled = max(0, self._cancelled - 1)
            else:
                callback()
