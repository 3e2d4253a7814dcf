"""Threads of a partition that were set aside, and when each is folded anew: bookkeeping alone, on the caller's clock.

What failed may have been transient, so a thread is tried again: soon at first, then after pauses that double up to a
limit. A thread that fails again within the pause that follows its refold has not healed, and goes on with the next one.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.ids import ThreadKey
from services.chassis.backoff import backoff_seconds

REFOLD_SECONDS_FIRST: Final = 5.0
"""Pause before the first refold of a thread. A short trouble is over by then, and a person who watches the thread waits
no longer than that.
"""
REFOLD_SECONDS_MOST: Final = 300.0
"""Longest pause between two refolds of a thread: once a release heals a fault, its threads continue within minutes."""
REPORT_SECONDS: Final = 10.0
"""Pause between two reports of a thread that is set aside. Ingest forgets a report after three of them."""


@dataclass(frozen=True, slots=True)
class Pauses:
    first_seconds: float = REFOLD_SECONDS_FIRST
    most_seconds: float = REFOLD_SECONDS_MOST
    report_seconds: float = REPORT_SECONDS

    def after(self, failures: int) -> float:
        return backoff_seconds(failures, self.first_seconds, self.most_seconds)


@dataclass(slots=True)
class Aside:
    since: float
    failures: int = 0
    next_at: float = 0.0
    """When it is folded anew or, once that has been done, when it counts as healed."""
    report_at: float = 0.0
    is_refolded: bool = False


class Report(NamedTuple):
    key: ThreadKey
    seconds: float
    """For how long the thread has been set aside."""


class Quarantine:
    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._aside: dict[ThreadKey, Aside] = {}

    def __len__(self) -> int:
        return len(self._aside)

    def set_aside(self, key: ThreadKey, now: float) -> None:
        aside = self._aside.setdefault(key, Aside(now))
        aside.failures += 1
        aside.next_at = now + self._pauses.after(aside.failures)
        aside.is_refolded = False

    def refolded(self, key: ThreadKey, now: float) -> None:
        aside = self._aside[key]
        aside.is_refolded = True
        aside.next_at = now + self._pauses.after(aside.failures)

    def postpone(self, key: ThreadKey, now: float) -> None:
        """It cannot be folded anew yet; that is no failure of its own."""
        self._aside[key].next_at = now + self._pauses.first_seconds

    def forget(self, key: ThreadKey) -> None:
        del self._aside[key]

    def due(self, now: float) -> list[ThreadKey]:
        """To be folded anew. Those that have gone well since their refold are forgotten."""
        over = [(key, aside.is_refolded) for key, aside in self._aside.items() if aside.next_at <= now]
        for key, is_healed in over:
            if is_healed:
                del self._aside[key]
        return [key for key, is_healed in over if not is_healed]

    def reports(self, now: float) -> list[Report]:
        """To be said now: each thread that is set aside, at once and then in regular intervals."""
        reports = []
        for key, aside in self._aside.items():
            if not aside.is_refolded and aside.report_at <= now:
                aside.report_at = now + self._pauses.report_seconds
                reports.append(Report(key, now - aside.since))
        return reports
