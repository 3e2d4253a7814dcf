"""Seeds of the simulation. `make simulate SEEDS=N` plays more of them, on all cores."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.conftest import DEPTH
from tests.simulation import invariants
from tests.simulation.runner import play_many
from tests.simulation.session import play
from tests.simulation.story import LINES_MAX

SEEDS_PER_TEST = 10
NEW_SEEDS_PER_TEST = 100
SEEDS_TOLD = [83, 84, 85]
MUCH = {
    "moves_every": 0.3,
    "tool_trouble": 0.3,
    "append_trouble": 0.04,
    "hasty": True,
    "ingests": 2,
    "watchers": 2,
    "refused": 0.01,
    "view_commands": 5,
    "rollups": 2,
}
OTHER_HASHES = "77"


@pytest.mark.parametrize("first", range(0, DEPTH.seeds, SEEDS_PER_TEST))
def test_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        play(seed)


@pytest.mark.skipif(not DEPTH.new_seeds, reason="new seeds are for `make proof` and `make fuzz`")
@pytest.mark.parametrize("part", range(max(1, DEPTH.new_seeds // NEW_SEEDS_PER_TEST)))
def test_new_seeds(part: int) -> None:
    first = time.time_ns() // 1_000_000 * 1_000 + part * NEW_SEEDS_PER_TEST
    for seed in range(first, first + NEW_SEEDS_PER_TEST):
        play(seed)


def test_the_same_seed_gives_the_same_story() -> None:
    """Also in another process, where sets of strings have another order, and all objects other addresses."""
    stories = [play(seed, **MUCH).text() for seed in SEEDS_TOLD]
    program = f"from tests.simulation.session import play; print([play(s, **{MUCH}).text() for s in {SEEDS_TOLD}])"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": OTHER_HASHES},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ast.literal_eval(told.stdout) == stories


def test_a_story_says_what_happened() -> None:
    story = play(SEEDS_TOLD[0], **MUCH)
    assert story.text().startswith(f"seed {SEEDS_TOLD[0]}: threads=")
    assert story.counts["killed"] and story.counts["paused"] and story.counts["stopped"]
    assert " turn.ended " in story.text() and " is killed after step " in story.text()


def test_a_seed_that_fails_tells_its_story(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_run: invariants.Run) -> Iterator[invariants.Broken]:
        yield invariants.Broken("it was seen")

    monkeypatch.setitem(invariants.CHECKS, "nothing is ever broken", broken)
    assert play_many(SEEDS_TOLD[0], 3, workers=1) == 1
    shown = capsys.readouterr().out
    assert f"seed {SEEDS_TOLD[0]}: ViolationError: nothing is ever broken: it was seen\n\nseed " in shown
    assert f"python -m tests.simulation {SEEDS_TOLD[0]}" in shown
    assert len(shown.splitlines()) < LINES_MAX + 20
