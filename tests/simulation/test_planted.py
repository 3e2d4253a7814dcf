"""The simulation is tested: each planted fault is found, each in a process of its own, and nothing else than the fault
makes the seed fail that found it. `make test` begins with the first seed that the fault names, `make fuzz` with a new
one each time.
"""

import re
import subprocess
import sys
import time

import pytest

from tests.conftest import PROFILE
from tests.simulation.planted import PLANTED, RULES, SEEDS_MAX, Planted
from tests.simulation.session import play

SECONDS_MAX = 1_200
"""For one fault, on a machine that does much else."""


def test_there_are_enough() -> None:
    assert len(PLANTED) >= 15
    assert len(RULES) >= 8
    assert len({fault.name for fault in PLANTED}) == len(PLANTED)


@pytest.mark.skipif(PROFILE == "default", reason="minutes, for `make test`")
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Planted) -> None:
    first = time.time_ns() // 1_000_000 if PROFILE == "fuzz" else fault.first
    options = ["--first", str(first), "--seeds", str(SEEDS_MAX)]
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
