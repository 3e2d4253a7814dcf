"""Timers: callbacks at times of the clock, from one heap and one sleeping task.

A service has a timer per thread that waits for something. A task for each would cost far more memory, and a timer of
the event loop; here a timer is one tuple, and cancelling it costs nothing until the heap is swept.
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from services.chassis.clock import Clock

SLEEP_SECONDS_MAX: Final = 60.0
"""The longest sleep. The clock is the wall clock, and may be set while the task sleeps."""
CANCELLED_MIN: Final = 100
"""The heap is swept when it contains more cancelled timers than this, and more of them than waiting ones."""


class Timer:
    """One callback at one time. A cancelled timer keeps only itself alive, and leaves the heap soon."""

    __slots__ = ("_timers", "callback", "time_ms")

    def __init__(self, timers: "Timers", time_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.time_ms = time_ms
        self.callback: Callable[[], None] | None = callback
        """What to call; None once the timer has fired or was cancelled."""

    def cancel(self) -> None:
        """Drop the callback. A timer that has fired, or was cancelled before, is left as it is."""
        if self.callback is not None:
            self.callback = None
            self._timers.count_cancelled()


class Timers:
    """Calls callbacks in the order of their times. An exception of a callback ends `run`, and so the service."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0
        self._changed = asyncio.Event()

    def at(self, time_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` at this time of the clock, or in the next round if it is past. Equal times keep their
        order.
        """
        timer = Timer(self, time_ms, callback)
        heapq.heappush(self._heap, (time_ms, next(self._numbers), timer))
        if self._heap[0][2] is timer:
            self._changed.set()
        return timer

    def __len__(self) -> int:
        """Return the number of timers in the heap: those that wait, and cancelled ones that are not swept out yet."""
        return len(self._heap)

    def count_cancelled(self) -> None:
        """Note that a timer in the heap was cancelled, and sweep the heap if half of it is."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    async def run(self) -> None:
        """Fire timers until cancelled."""
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
        """Fire what is due. A timer that a callback sets for now fires in the next round, so that a round has an
        end.
        """
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
