"""When a busy reader lets records gather before it fetches again.

A fetch costs the same whatever it brings, and a broker that has one record for a waiting fetch answers at once. A
single session wants just that. With many sessions at the same time it means a request for every few records, which
costs reader and broker CPU. So a reader that has just seen records of many threads pauses a little between fetches.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

WINDOW_SECONDS: Final = 0.05
"""The window over which threads are counted."""
BUSY_THREADS: Final = 8
"""A reader is busy if this many threads have records in one window. Fewer sessions want the shortest latency more than
the CPU that a pause saves.
"""
BUSY_PAUSE_SECONDS: Final = 0.002
"""Pause of a busy reader between two fetches: short beside a turn, and long beside the gap between two records."""


@dataclass(slots=True)
class Pace:
    """The pauses of one reader. Decisions are made per window of time, on the caller's clock."""

    busy_threads: int = BUSY_THREADS
    pause_seconds: float = BUSY_PAUSE_SECONDS
    keys: set[bytes | None] = field(default_factory=set)
    window_ends: float = 0.0
    is_busy: bool = False

    def took(self, keys: Iterable[bytes | None], now: float) -> float:
        """Return the seconds to pause after a poll that brought records with these keys."""
        if now >= self.window_ends:
            self.is_busy = len(self.keys) >= self.busy_threads and now < self.window_ends + WINDOW_SECONDS
            self.window_ends = now + WINDOW_SECONDS
            self.keys.clear()
        self.keys.update(keys)
        return self.pause_seconds if self.is_busy else 0.0

    async def pause_after(self, keys: Iterable[bytes | None]) -> None:
        """Pause after a poll, if the reader is busy."""
        seconds = self.took(keys, asyncio.get_running_loop().time())
        if seconds > 0:
            await asyncio.sleep(seconds)
