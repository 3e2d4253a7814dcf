import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until it holds; fail when it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold in time"
        await asyncio.sleep(0.01)
