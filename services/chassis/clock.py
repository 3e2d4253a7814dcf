"""Time and drawn ids enter here and nowhere else."""

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def draw_id() -> str:
    """A random UUID in its canonical form, for what has no meaning to derive an id from."""
    return str(uuid.uuid4())
