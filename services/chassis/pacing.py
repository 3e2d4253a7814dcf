"""When a busy reader lets records gather before it fetches again.

A fetch costs the same whatever it brings, and a broker that has one record for a waiting fetch answers at once. Alone,
a session wants just that; under load it means a request for every few records, paid for by reader and broker. So a
reader that has been given many records per second for a while pauses a little between fetches.
"""

import asyncio
from dataclasses import dataclass

RATE_SECONDS = 0.5
"""Over which the rate is smoothed."""


@dataclass(slots=True)
class Pace:
    busy_records_per_second: float
    pause_seconds: float
    rate: float = 0.0
    since: float = 0.0

    def took(self, records: int, now: float) -> float:
        """Seconds to pause after a poll that brought so many records."""
        elapsed = max(now - self.since, 1e-6)
        weight = min(1.0, elapsed / RATE_SECONDS)
        self.rate += weight * (records / elapsed - self.rate)
        self.since = now
        return self.pause_seconds if self.rate >= self.busy_records_per_second else 0.0

    async def pause_after(self, records: int) -> None:
        seconds = self.took(records, asyncio.get_running_loop().time())
        if seconds > 0:
            await asyncio.sleep(seconds)
