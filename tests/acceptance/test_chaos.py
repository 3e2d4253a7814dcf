"""A minute of `make chaos`: generous about time, since other tests run beside it, and strict about what must be zero."""

import secrets

import pytest

from tests.chaos.ledger import CLASSES
from tests.chaos.report import violations
from tests.chaos.run import chaos
from tests.conftest import IS_CI, NEEDS_APACHE
from tests.support.processes.services import choose_kafka

SECONDS = 60
FAULTS_MIN = 4
"""On a machine that is busy with other tests, everything that was killed takes long to come back."""


async def test_nothing_is_lost_or_done_twice_while_everything_is_killed() -> None:
    choice = choose_kafka(is_must=IS_CI, is_own=True)
    if choice.kind != "apache":
        pytest.skip(f"{NEEDS_APACHE}: its JVM is killed. {choice.reason}")
    seed = secrets.randbelow(1_000_000)
    found = await chaos(SECONDS, seed, calm_kills=0)
    result = found.result
    assert violations(result) == [], "\n".join([f"seed {seed}", *found.stories])
    assert sum(result["faults"].values()) >= FAULTS_MIN
    assert result["turns"]["ended"] > 0
    assert result["clients"]["connections"] > result["clients"]["streams"] > 0
    assert sum(result["calls"][effect]["executed"] for effect in CLASSES) > 0
    assert result["unanswered"] == 0
