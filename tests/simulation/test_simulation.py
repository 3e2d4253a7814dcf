"""Seeds of the simulation. `make simulate SEEDS=N` plays more of them, on all cores."""

import os
import subprocess
import sys
import time

import pytest

from tests.conftest import PROFILE
from tests.simulation.session import play

SEEDS = 500 if PROFILE != "default" else 20
SEEDS_PER_TEST = 10
NEW_SEEDS = 1_000
SEED_THAT_DOES_MUCH = 3
OTHER_HASHES = "77"


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        play(seed)


@pytest.mark.skipif(PROFILE != "fuzz", reason="new seeds are for `make fuzz`")
def test_new_seeds() -> None:
    first = time.time_ns() // 1_000_000
    for seed in range(first, first + NEW_SEEDS):
        play(seed)


def test_the_same_seed_gives_the_same_story() -> None:
    """Also in another process, where sets of strings have another order."""
    story = play(SEED_THAT_DOES_MUCH).text()
    assert play(SEED_THAT_DOES_MUCH).text() == story
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(SEED_THAT_DOES_MUCH)],
        env=os.environ | {"PYTHONHASHSEED": OTHER_HASHES},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == story.strip()
