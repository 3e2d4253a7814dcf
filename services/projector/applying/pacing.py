"""When to commit next: at once after a quiet time, seldom under load. Pure."""

from dataclasses import dataclass
from typing import Final

RATE_WEIGHT: Final = 0.3
"""Of the last batch in the smoothed rate."""


@dataclass(slots=True)
class Pacing:
    """Each commit costs the same few round trips whatever it holds, so that under load it pays to wait for more."""

    interval_seconds: float
    interval_idle_seconds: float
    busy_records_per_second: float
    rate: float = 0.0
    """Records per second, smoothed."""
    last: float | None = None
    """When the last batch was taken."""

    def wait_seconds(self, now: float) -> float:
        """From now to the next commit."""
        if self.last is None:
            return 0.0
        is_busy = self.rate >= self.busy_records_per_second
        interval = self.interval_seconds if is_busy else min(self.interval_idle_seconds, self.interval_seconds)
        return max(0.0, self.last + interval - now)

    def took(self, records: int, now: float) -> None:
        if self.last is not None:
            seconds = max(now - self.last, 1e-3)
            # A quiet time counts as much as it lasted: after it nothing of an earlier load is left.
            weight = max(RATE_WEIGHT, min(1.0, seconds))
            self.rate += weight * (records / seconds - self.rate)
        self.last = now
