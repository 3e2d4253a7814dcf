"""Which threads of a partition are set aside, and when each is folded anew. Pure: times come from the caller's clock.

What failed may have been transient, so a thread is tried again: soon at first, then after pauses that double up to a
limit. A thread that fails again within the pause that follows its refold has not healed, and continues with the next
longer pause. One that stays well for that pause is forgotten, and its next failure starts with the first pause.
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
        """Return the pause after this many failures, in seconds."""
        return backoff_seconds(failures, self.first_seconds, self.most_seconds)


@dataclass(slots=True)
class Aside:
    """One thread that is set aside, or was refolded and may fail again. Times are seconds on the caller's clock."""

    since: float
    failures: int = 0
    next_at: float = 0.0
    """When the thread is folded anew or, after that, when it counts as healed."""
    report_at: float = 0.0
    is_refolded: bool = False
    """Whether it was folded anew and has not failed since."""


class Report(NamedTuple):
    key: ThreadKey
    seconds: float
    """How long the thread has been set aside."""


class Quarantine:
    """The threads of one partition that are set aside. Its length is their number, with those not healed yet."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._aside: dict[ThreadKey, Aside] = {}

    def __len__(self) -> int:
        return len(self._aside)

    def set_aside(self, key: ThreadKey, now: float) -> None:
        """Count a failure of the thread, and begin its next pause."""
        aside = self._aside.setdefault(key, Aside(now))
        aside.failures += 1
        aside.next_at = now + self._pauses.after(aside.failures)
        aside.is_refolded = False

    def refolded(self, key: ThreadKey, now: float) -> None:
        """Begin to watch whether the thread stays well, for as long as its last pause was."""
        aside = self._aside[key]
        aside.is_refolded = True
        aside.next_at = now + self._pauses.after(aside.failures)

    def postpone(self, key: ThreadKey, now: float) -> None:
        """Try the thread later, because it cannot be folded anew yet. This is no failure of the thread."""
        self._aside[key].next_at = now + self._pauses.first_seconds

    def forget(self, key: ThreadKey) -> None:
        del self._aside[key]

    def due(self, now: float) -> list[ThreadKey]:
        """Return the threads to fold anew now. Threads that stayed well since their refold are forgotten."""
        over = [(key, aside.is_refolded) for key, aside in self._aside.items() if aside.next_at <= now]
        for key, is_healed in over:
            if is_healed:
                del self._aside[key]
        return [key for key, is_healed in over if not is_healed]

    def reports(self, now: float) -> list[Report]:
        """Return what to report now: each thread that is set aside, at once and then at regular intervals."""
        reports = []
        for key, aside in self._aside.items():
            if not aside.is_refolded and aside.report_at <= now:
                aside.report_at = now + self._pauses.report_seconds
                reports.append(Report(key, now - aside.since))
        return reports
