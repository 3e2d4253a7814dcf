"""The order of tests, what is known of their times, and the line that says how far a run is."""

from pathlib import Path

from tests.support.running.depth import DEPTHS, MEASURED, times_longer
from tests.support.running.durations import UNKNOWN_SECONDS, Durations
from tests.support.running.order import rank, units_in_order
from tests.support.running.progress import Progress

UNIT, SLOW, QUICK = (
    "tests/unit/test_a.py::test_1",
    "tests/acceptance/test_b.py::test_2",
    "tests/contract/test_c.py::test_3",
)


def test_fast_kinds_come_first_and_then_what_takes_longest() -> None:
    durations = Durations({SLOW: 80.0, "tests/contract/test_c.py": 0.2})
    units = {"quick": [QUICK], "slow": [SLOW], "unit": [UNIT]}
    seconds = {nodeid: durations.of(nodeid) for tests in units.values() for nodeid in tests}
    assert units_in_order(units, units, seconds) == ["unit", "slow", "quick"]


def test_depth_makes_property_tests_longer() -> None:
    machine = "tests/property/test_fold.py::TestRaces::runTest"
    assert times_longer(machine, DEPTHS[MEASURED]) == times_longer(UNIT, DEPTHS["proof"]) == 1
    assert times_longer(machine, DEPTHS["proof"]) == 20


def test_planted_faults_come_after_the_seeds() -> None:
    assert rank("tests/simulation/test_simulation.py::test_seeds[0]") < rank("tests/simulation/test_planted.py::test")


def test_long_tests_are_remembered_one_by_one_and_others_by_their_file(tmp_path: Path) -> None:
    known = Durations({"tests/unit/test_a.py": 9.0, "tests/gone.py": 1.0, SLOW: 1.0})
    renewed = known.renewed({UNIT: 0.1, "tests/unit/test_a.py::test_4": 0.3, "tests/unit/test_a.py::test_5": 30.04})
    assert renewed.of(UNIT) == 0.2
    assert renewed.of("tests/unit/test_a.py::test_5") == 30.0
    assert renewed.of(SLOW) == 1.0
    assert renewed.of(QUICK) == UNKNOWN_SECONDS
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").touch()
    renewed.write(tmp_path, tmp_path / "durations.json")
    written = Durations.read(tmp_path / "durations.json")
    assert written.of(UNIT) == 0.2
    assert written.of("tests/gone.py::test") == UNKNOWN_SECONDS


def test_progress_is_told_in_parts_of_the_expected_time() -> None:
    progress = Progress([UNIT, SLOW], {SLOW: 3.0, UNIT: 1.0}.__getitem__, print)
    assert not progress.is_long
    assert progress.line(5) == "0 of 2 tests, 0% of the expected time, 5 s so far"
    progress.done(UNIT)
    assert progress.line(30) == "1 of 2 tests, 25% of the expected time, 30 s so far, about 1 min 30 s to go"
    progress.done(SLOW)
    assert progress.line(120) == "2 of 2 tests, 100% of the expected time, 2 min 00 s so far, about 0 s to go"
