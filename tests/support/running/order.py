"""In which order tests run: kinds that are fast first, and within what needs services the longest first.

A mistake is found most often by the tests that are fastest, so unit tests, property tests and simulations come before
everything that needs a service. From there on another thing counts: two workers should end together. If the longest
test came last, one worker would run it for a minute and a half while the other has nothing to do. So a long unit begins
before a short one, whichever folder it is in, and the short ones at the end go to whichever worker is free.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.support.running.durations import file_of

FAST: Final = (
    "tests/unit/",
    "tests/golden/",
    "tests/property/",
    "tests/simulation/test_simulation.py",
    "tests/simulation/",
)
"""Folders and files of tests that need no service, the fastest first."""


def rank(nodeid: str) -> int:
    """Return the place of a test's kind: a lower one runs earlier."""
    return next((place for place, start in enumerate(FAST) if nodeid.startswith(start)), len(FAST))


def units_in_order(units: Iterable[str], tests: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> list[str]:
    """Sort units of work, each of which runs in one worker. `tests` names the tests of each unit, `seconds` gives the
    expected time of each test.
    """

    def place(unit: str) -> tuple[int, float]:
        kind = min(rank(nodeid) for nodeid in tests[unit])
        return kind, -sum(seconds[nodeid] for nodeid in tests[unit])

    return sorted(units, key=place)


def is_unit_test(nodeid: str) -> bool:
    """Unit tests are so quick that a worker is given those of a file at once."""
    return file_of(nodeid).startswith("tests/unit/")
