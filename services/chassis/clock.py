"""Where time and random ids enter, and nowhere else: everything below takes them as arguments, and can be replayed."""

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """The wall clock. Tests and the simulation have their own."""

    def now_ms(self) -> int:
        """Return the milliseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def draw_id() -> str:
    """Return a random UUID in its canonical form, for what has nothing to derive an id from."""
    return str(uuid.uuid4())
