"""How far a reader is behind its log, in records and in seconds, and whether it stands still.

**Lag in seconds** is how long ago the log ended where the reader is now. The ends are remembered from look to look, and
between two looks the log is taken to have grown evenly. So the lag needs no record's time, is right after a quiet hour,
and is as exact as the looks are frequent. A reader that was behind at the first look is at least as far behind as that
look is ago.

**A reader stands still** if the log answers and has more for it, it waits for nothing else, and yet its position has
moved in no partition for a long time. Only a fault of the process explains that, so a restart may help. A log or a
database that is away never looks like it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog
from prometheus_client import Gauge

from services.chassis.log.port import Log, LogError, TopicPartition

LOOK_SECONDS: Final = 5.0
"""Pause between two looks at the end of the log. The lag in seconds is as exact as this, and shown as late as this."""
STUCK_SECONDS: Final = 300.0
"""A reader that has read nothing for so long stands still, and /livez answers 503. Minutes, because a restart under
load costs more than a pause that ends by itself.
"""
LOOKS_MAX: Final = 128
"""Looks that are remembered of one partition. When there are more, every other one is forgotten."""

Offsets = Mapping[TopicPartition, int]

log = structlog.get_logger()


class Behind(NamedTuple):
    records: int
    seconds: float
    """Lag of the partition that is furthest behind."""


class _Look(NamedTuple):
    at: float
    end: int


class Lag:
    """The computation alone: times and offsets are arguments."""

    def __init__(self) -> None:
        self._looks: dict[TopicPartition, list[_Look]] = {}

    def look(self, at: float, ends: Offsets, positions: Offsets) -> Behind:
        """Return how far the reader is behind, in records and in seconds.

        `positions` are the offsets of the first record that the reader does not have. `ends` must be older than them:
        else records that arrived in between would count as lag.
        """
        self._looks = {tp: self._looks.get(tp, []) for tp in positions}
        records, seconds = 0, 0.0
        for tp, position in positions.items():
            looks = self._looks[tp]
            looks.append(_Look(at, ends[tp]))
            if len(looks) > LOOKS_MAX:
                del looks[1:-1:2]
            while len(looks) > 1 and looks[1].end <= position:
                del looks[0]
            records += max(0, ends[tp] - position)
            seconds = max(seconds, at - _level_at(looks, position))
        return Behind(records, seconds)


def _level_at(looks: list[_Look], position: int) -> float:
    """Return when the log ended at the position. All looks but the first lie beyond it."""
    first = looks[0]
    if len(looks) == 1 or first.end >= position:
        return first.at
    second = looks[1]
    return first.at + (second.at - first.at) * (position - first.end) / (second.end - first.end)


class LagMeter:
    """Looks at the log again and again, sets the gauges, and judges whether the reader stands still."""

    def __init__(
        self,
        log_: Log,
        positions: Callable[[], Offsets],
        *,
        records: Gauge,
        seconds: Gauge,
        look_seconds: float = LOOK_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """`waits` returns whether the reader is held up, or was since the last look, by something else than itself."""
        self._log = log_
        self._positions = positions
        self._records = records
        self._seconds = seconds
        self._look_seconds = look_seconds
        self._stuck_seconds = stuck_seconds
        self._waits = waits
        self._lag = Lag()
        self._last: Offsets = {}
        self._looked_at = 0.0
        self._moved_at = 0.0

    async def run(self) -> None:
        """Look until cancelled. A log that does not answer leaves the gauges as they are."""
        self._moved_at = asyncio.get_running_loop().time()
        while True:
            try:
                await self.look()
            except LogError as error:
                log.warning("lag_measurement_failed", error=str(error))
            await asyncio.sleep(self._look_seconds)

    async def look(self) -> None:
        """Look once. Raise LogError if the log does not answer."""
        ends = await self._log.end_offsets(list(self._positions()))
        now = asyncio.get_running_loop().time()
        positions = {tp: offset for tp, offset in self._positions().items() if tp in ends}
        behind = self._lag.look(now, ends, positions)
        self._records.set(behind.records)
        self._seconds.set(behind.seconds)
        if behind.records == 0 or positions != self._last or self._waits():
            self._moved_at = now
        elif now - self._looked_at > self._stuck_seconds / 2:
            self._moved_at = now  # the log did not answer meanwhile
        self._last, self._looked_at = positions, now

    def not_live(self) -> str | None:
        """Return the reason if the reader stands still, else None. An old look proves nothing, so it judges nothing."""
        now = asyncio.get_running_loop().time()
        stands = self._looked_at - self._moved_at
        if stands < self._stuck_seconds or now - self._looked_at > self._stuck_seconds / 2:
            return None
        return f"no record was read for {stands:.0f} s, though there are some"
