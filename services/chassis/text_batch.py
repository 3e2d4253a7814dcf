"""Text as it comes, a few milliseconds of it in one piece."""

import asyncio
from collections.abc import Callable


class TextBatch:
    def __init__(self, emit: Callable[[str], None], interval_ms: int) -> None:
        self._emit = emit
        self._interval_seconds = interval_ms / 1000
        self._pieces: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        self._pieces.append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._emit("".join(pieces))
