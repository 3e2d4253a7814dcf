"""When to commit next: at once after a quiet time, less often under load. A pure decision."""

from dataclasses import dataclass
from typing import Final

INTERVAL_SECONDS: Final = 0.12
"""From one commit to the next under load: eight commits per second, whatever the load. A record waits this long at most
for its batch.
"""
BUSY_RECORDS_PER_SECOND: Final = 1_500
"""From this rate on it is load: a commit every 15 ms would then hold few records more than its own cost is worth."""
RATE_WEIGHT: Final = 0.3
"""How much the last batch counts in the smoothed rate."""


@dataclass(slots=True)
class Pacing:
    """Each commit costs the same few round trips, however many records it has. So under load it pays to wait
    for more.
    """

    interval_idle_seconds: float
    """From one commit to the next while few records come."""
    interval_seconds: float = INTERVAL_SECONDS
    busy_records_per_second: float = BUSY_RECORDS_PER_SECOND
    rate: float = 0.0
    """Records per second, smoothed."""
    last: float | None = None
    """The time at which the last batch was taken; None before the first."""

    def wait_seconds(self, now: float) -> float:
        """Return the seconds from now to the next commit."""
        if self.last is None:
            return 0.0
        is_busy = self.rate >= self.busy_records_per_second
        interval = self.interval_seconds if is_busy else min(self.interval_idle_seconds, self.interval_seconds)
        return max(0.0, self.last + interval - now)

    def took(self, records: int, now: float) -> None:
        """Note that a batch of `records` was taken at `now`."""
        if self.last is not None:
            seconds = max(now - self.last, 1e-3)
            # A quiet time weighs as much as it lasted: after a second of it, an earlier load has no weight left.
            weight = max(RATE_WEIGHT, min(1.0, seconds))
            self.rate += weight * (records / seconds - self.rate)
        self.last = now
