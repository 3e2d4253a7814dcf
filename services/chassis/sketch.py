"""Quantiles of durations, from counts per bin: a DDSketch, whose bins are 2 % wide, so that a quantile is 1 % exact.

Its bins do not depend on what else is in it: sketches are merged by adding the counts of the same bin, in any order and
any grouping, and are the same for the same values. So they are kept as counters, and made one to be asked.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

ACCURACY: Final = 0.01
"""Relative. Counts of bins of another accuracy cannot be merged with these."""
ZERO_BIN: Final = "zero"
BIN_MAX: Final = 2_000
"""Far more than the longest time there is. A bin beyond it is no bin of ours."""

_mapping = LogarithmicMapping(ACCURACY)


def bin_of(milliseconds: int) -> str:
    return str(_mapping.key(milliseconds)) if milliseconds > 0 else ZERO_BIN


def quantiles(bins: Mapping[str, int], which: Sequence[float]) -> list[float] | None:
    """In milliseconds; None where nothing was counted."""
    store, zeros = DenseStore(), 0
    for name, count in bins.items():
        if name == ZERO_BIN:
            zeros += count
        elif 0 <= int(name) <= BIN_MAX:
            store.add(int(name), count)
    sketch = BaseDDSketch(_mapping, store, DenseStore(), zeros)
    found = [sketch.get_quantile_value(one) for one in which]
    return [float(value) for value in found if value is not None] or None
