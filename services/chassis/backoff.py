"""How long to wait before something that failed is tried again: one rule for every service.

The pause doubles with each failure in a row, up to a limit. This is truncated binary exponential backoff, as Ethernet
(IEEE 802.3) and most clients of networks use it: a short trouble costs a short pause, and a long one does not cost the
other side a request per moment. There is no random part. Decisions and the simulation have to give the same result
when they are replayed, and what waits here is few processes, not a crowd of clients.
"""

from typing import Final

DOUBLINGS_MAX: Final = 60
"""A pause of a nanosecond reaches 36 years with so many doublings; without a bound the power would overflow."""


def backoff_seconds(failures: int, first: float, most: float) -> float:
    """Return the pause after `failures` failures in a row: min(most, first * 2 ** (failures - 1)), in seconds.

    The first failure gives `first`, and so does a count below 1. A `first` above `most` gives `most`. The unit of the
    result is that of `first` and `most`, which the callers give in seconds.
    """
    doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
    return min(most, first * 2.0**doublings)
