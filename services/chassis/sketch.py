"""Quantiles of durations from counts per bin: a DDSketch (Masson, Rim, Lee, 2019), exact to 1 %.

Its bins are 2 % wide and do not depend on what else it contains. So sketches are merged by adding the counts of equal
bins, in any order and any grouping, and equal values give equal sketches. They are stored as counters, and made a
sketch when somebody asks.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

ACCURACY: Final = 0.01
"""The relative error. Counts of bins of another accuracy cannot be merged with these."""
ZERO_BIN: Final = "zero"
"""The name of the bin of durations of 0 ms, which have no logarithm."""
BIN_MAX: Final = 2_000
"""The largest bin that is read. It stands for more time than there is, so a bin beyond it is an error, and is
ignored.
"""

_mapping = LogarithmicMapping(ACCURACY)


def bin_of(milliseconds: int) -> str:
    """Return the name of a duration's bin."""
    return str(_mapping.key(milliseconds)) if milliseconds > 0 else ZERO_BIN


def quantiles(bins: Mapping[str, int], which: Sequence[float]) -> list[float] | None:
    """Return these quantiles in milliseconds, such as 0.99, or None if nothing was counted."""
    store, zeros = DenseStore(), 0
    for name, count in bins.items():
        if name == ZERO_BIN:
            zeros += count
        elif 0 <= int(name) <= BIN_MAX:
            store.add(int(name), count)
    sketch = BaseDDSketch(_mapping, store, DenseStore(), zeros)
    found = [sketch.get_quantile_value(one) for one in which]
    return [float(value) for value in found if value is not None] or None
