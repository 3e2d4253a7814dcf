from dataclasses import replace

import pytest

from schemas.config import Config
from schemas.config import Limits as OwnLimits
from services.runtime.deciding.limits import narrowed, retry_delay_ms
from tests.support.recorded.deciding import LIMITS

OURS = replace(LIMITS, steps_per_turn=10, turn_seconds=100, parallel_calls=4, model_tries=3)


def test_a_thread_without_limits_of_its_own_has_the_services() -> None:
    assert narrowed(OURS, Config(model="m")) == OURS


def test_a_thread_may_narrow_and_never_widen() -> None:
    own = OwnLimits(steps_per_turn=2, turn_seconds=5_000, parallel_calls=1, model_tries=100)
    limits = narrowed(OURS, Config(model="m", limits=own))
    assert (limits.steps_per_turn, limits.turn_seconds, limits.parallel_calls, limits.model_tries) == (2, 100, 1, 3)
    assert limits.approval_seconds == OURS.approval_seconds


@pytest.mark.parametrize(
    ("failures", "asked", "seconds"),
    [
        (0, None, 1),
        (1, None, 2),
        (3, None, 8),
        (10, None, 60),
        (1_000, None, 60),
        (0, 7.5, 7.5),
        (3, 2.0, 8),
        (0, 600.0, 60),
    ],
)
def test_retries_back_off_within_bounds(failures: int, asked: float | None, seconds: float) -> None:
    assert retry_delay_ms(OURS, failures, asked) == 1000 * seconds
