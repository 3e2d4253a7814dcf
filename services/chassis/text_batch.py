"""Gather text that streams in, and pass on a few milliseconds of it in one piece.

A model sends a few characters at a time. A record for each would cost the log and every reader far more than the text.
"""

import asyncio
from collections.abc import Callable


class TextBatch:
    """Calls `emit` with the text of each interval. The first piece starts the interval, so a pause costs nothing."""

    def __init__(self, emit: Callable[[str], None], interval_ms: int) -> None:
        self._emit = emit
        self._interval_seconds = interval_ms / 1000
        self._pieces: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Add a piece, which is passed on after the interval at the latest."""
        self._pieces.append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self.flush)

    def flush(self) -> None:
        """Pass on what has gathered, at once. Call it at the end of the text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._emit("".join(pieces))
