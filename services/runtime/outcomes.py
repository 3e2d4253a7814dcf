"""What a part of the runtime returns to the loop once what it waited for has happened.

The parts (model calls, messages to other threads, transcripts) wait for the outside world. They change what is kept for
a thread in memory, but they decide nothing and append nothing to the thread: they return one of these values and the
loop acts on it. So there is one place which checks that this process still owns the partition, one that decides, and
one that sets a thread aside; and a part can be tested without a loop.
"""

from typing import NamedTuple, TypeAlias

from services.chassis.log.port import LogError
from services.runtime.deciding.decisions import Append


class Proceed(NamedTuple):
    """Something new is known that is no record of the thread, so decide again."""

    first: Append | None = None
    """Event that is appended before that, unless it no longer fits: another owner may have been faster."""


class RetryLater(NamedTuple):
    """It failed for a reason that passes, so decide again after a pause; the decision asks for it once more."""


class SetAside(NamedTuple):
    """It failed in a way that no retry mends, so do nothing more for this thread until it is read anew."""

    error: Exception


Outcome: TypeAlias = Proceed | RetryLater | SetAside


def after_failed_append(error: BaseException) -> Outcome:
    """Return what follows from an append that the log did not acknowledge: its error says whether a retry can help."""
    return SetAside(error) if isinstance(error, LogError) and not error.retriable else RetryLater()
