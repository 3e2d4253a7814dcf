"""How far a run is, in parts of its expected time: a count says little where one test takes as long as a thousand."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

EVERY_SECONDS: Final = 15.0
SHORT_SECONDS: Final = 30.0
"""A run that is expected to be shorter than this needs no such lines."""


class Progress:
    """Tell a line now and then from a thread of its own, so that it also comes while every worker is at a long test."""

    def __init__(self, nodeids: Sequence[str], seconds_of: Callable[[str], float], tell: Callable[[str], None]) -> None:
        self._expected = {nodeid: seconds_of(nodeid) for nodeid in nodeids}
        self._all_seconds = sum(self._expected.values())
        self._done_seconds = 0.0
        self._done = 0
        self._tell = tell
        self._ended = threading.Event()
        self._began = time.monotonic()

    @property
    def is_long(self) -> bool:
        return self._all_seconds >= SHORT_SECONDS

    def start(self) -> None:
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def done(self, nodeid: str) -> None:
        self._done += 1
        self._done_seconds += self._expected.get(nodeid, 0.0)

    def line(self, seconds: float) -> str:
        """Say how far the run is, `seconds` after it began."""
        share = self._done_seconds / self._all_seconds if self._all_seconds else 1.0
        shown = f"{self._done:,} of {len(self._expected):,} tests, {share:.0%} of the expected time, {_minutes(seconds)} so far"
        if share <= SHARE_FOR_A_GUESS:
            return shown
        return f"{shown}, about {_minutes(seconds * (1 - share) / share)} to go"

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._tell(self.line(time.monotonic() - self._began))


SHARE_FOR_A_GUESS: Final = 0.1
"""Before, the speed of this machine is not known well enough."""


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
