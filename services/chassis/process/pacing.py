"""When a busy reader lets records gather before it fetches again.

A fetch costs the same whatever it brings, and a broker that has one record for a waiting fetch answers at once. Alone,
a session wants just that; when many go on at the same time it means a request for every few records, paid for by reader
and broker. So a reader that has just seen records of many threads pauses a little between fetches.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

WINDOW_SECONDS = 0.05
"""Over which threads are counted."""


@dataclass(slots=True)
class Pace:
    busy_threads: int
    """From so many threads with records in one window on, the reader is busy."""
    pause_seconds: float
    keys: set[bytes | None] = field(default_factory=set)
    window_ends: float = 0.0
    is_busy: bool = False

    def took(self, keys: Iterable[bytes | None], now: float) -> float:
        """Seconds to pause after a poll that brought records with these keys."""
        if now >= self.window_ends:
            self.is_busy = len(self.keys) >= self.busy_threads and now < self.window_ends + WINDOW_SECONDS
            self.window_ends = now + WINDOW_SECONDS
            self.keys.clear()
        self.keys.update(keys)
        return self.pause_seconds if self.is_busy else 0.0

    async def pause_after(self, keys: Iterable[bytes | None]) -> None:
        seconds = self.took(keys, asyncio.get_running_loop().time())
        if seconds > 0:
            await asyncio.sleep(seconds)
