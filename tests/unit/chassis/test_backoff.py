"""The pause between tries: its formula at chosen counts, and its properties at any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.backoff import backoff_seconds

SECONDS = st.floats(min_value=1e-9, max_value=1e9)
FAILURES = st.integers(min_value=1, max_value=10**12)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(-1, 5), (0, 5), (1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (1_000, 60), (10**9, 60)]
)
def test_it_doubles_from_the_first_pause_up_to_the_most(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures, 5, 60) == seconds


def test_a_first_pause_above_the_most_is_cut() -> None:
    assert backoff_seconds(1, 90, 60) == 60


@given(FAILURES, SECONDS, SECONDS)
def test_it_lies_between_the_first_pause_and_the_most(failures: int, first: float, most: float) -> None:
    assert min(first, most) <= backoff_seconds(failures, first, most) <= most


@given(FAILURES, SECONDS, SECONDS)
def test_another_failure_never_shortens_it_and_at_most_doubles_it(failures: int, first: float, most: float) -> None:
    before, after = backoff_seconds(failures, first, most), backoff_seconds(failures + 1, first, most)
    assert before <= after <= 2 * before


@given(st.integers(min_value=40, max_value=10**12), st.floats(min_value=1e-3, max_value=1e3))
def test_it_reaches_the_most_in_the_end(failures: int, first: float) -> None:
    assert backoff_seconds(failures, first, 3_600) == 3_600
