"""The simulation is tested: each planted fault is found, each in a process of its own, and nothing else than the fault
makes the seed fail that found it. `make test` begins with the first seed that the fault names, `make proof` and `make
fuzz` with a new one each time, and look longer, since a rare fault may hide from some thousand of them.
"""

import re
import subprocess
import sys
import time

import pytest

from tests.conftest import DEPTH
from tests.simulation.planted import PLANTED, RULES, SEEDS_MAX, Planted
from tests.simulation.session import play

NEW_SEEDS_MAX = 5 * SEEDS_MAX
SECONDS_MAX = 3_600 if DEPTH.draws_seeds_of_faults else 1_200
"""For one fault, on a machine that does much else."""


def test_there_are_enough() -> None:
    assert len(PLANTED) >= 15
    assert len(RULES) >= 8
    assert len({fault.name for fault in PLANTED}) == len(PLANTED)


@pytest.mark.skipif(not DEPTH.plants_faults, reason="minutes, for `make test` and `make proof`")
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Planted) -> None:
    first, seeds = fault.first, SEEDS_MAX
    if DEPTH.draws_seeds_of_faults:
        first, seeds = time.time_ns() // 1_000_000, NEW_SEEDS_MAX
    options = ["--first", str(first), "--seeds", str(seeds)]
    finding = subprocess.run(
        [sys.executable, "-m", "tests.simulation.planted", fault.name, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    print(finding.stdout)
    found = re.search(r"found by seed (\d+)", finding.stdout)
    assert found is not None, f"{finding.stdout}{finding.stderr}"
    assert finding.returncode == 0
    play(int(found[1]), **fault.choices)
