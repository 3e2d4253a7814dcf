import asyncio
import time
from collections.abc import Callable

PATIENCE_SECONDS = 180.0
"""For what mostly comes at once: a machine that does much else, or stands still for a while, is no failure."""


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until it holds; fail when it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold in time"
        await asyncio.sleep(0.01)
