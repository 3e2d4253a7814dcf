"""How often Python looks for cycles of objects while a generation is filled."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (500_000, 10, 100)
"""The thresholds of Python's garbage collector. A batch makes some hundred thousand objects that all end with it and
form no cycles. Python may make as many as two batches have before it looks for cycles. With its default it looks so
often that this takes a fifth of the time of a rebuild; with a tenth of these numbers it still takes a fourteenth.
"""


def collect_rarely() -> None:
    """Set the thresholds for the rest of the process: for a worker, which does little else."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Set the thresholds for a while: for a rebuild within a process that does other work afterwards."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
