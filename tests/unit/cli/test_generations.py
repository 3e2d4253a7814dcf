import os
import sys

import orjson
import pytest

from services.cli.generations import Bar, Lines, bar
from services.projector.rebuilding.compare import Checksum, Difference
from services.projector.rebuilding.progress import Progress


def _reading(done: int, seconds: float, **changed: object) -> Progress:
    fields: dict[str, object] = {
        "phase": "reading",
        "generation": 7,
        "records_done": done,
        "records_total": 10_000,
        "seconds": seconds,
        "records_now": done - 1_000,
    }
    return Progress(**(fields | changed))  # type: ignore[arg-type]


def test_a_bar_tells_share_rate_and_time_left() -> None:
    drawn = bar(_reading(4_000, 2.0))
    assert drawn == "reading   [############..................]  40%  4,000 of 10,000 records  1,500/s  0:04 left"
    assert bar(_reading(4_000, 2.0, is_paused=True)).endswith("paused: the live views are behind")
    assert bar(_reading(1_000, 0.0)).endswith("0/s")
    assert bar(_reading(1_100, 100.0)).endswith("2:28:20 left")
    assert "100%" in bar(Progress("done", 7, 0, 0, 0.1))


def test_a_bar_is_drawn_over_and_ends_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    draw = Bar()
    draw(_reading(2_000, 0.00))
    draw(_reading(2_001, 0.01))  # too soon
    draw(_reading(3_000, 0.20))
    draw(_reading(3_000, 0.21, phase="comparing", differences=[Difference("turns", "acme", Checksum(3, "1"), None)]))
    draw(_reading(10_000, 0.22, phase="done"))
    drawn = capsys.readouterr().out
    assert drawn.count("\r") == 4 and drawn.endswith("\n") and "2,001" not in drawn
    assert "differs: turns of tenant acme: 3 rows in the live generation, 0 in the built one" in drawn


def test_lines_are_json_one_a_second_and_one_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    say = Lines()
    for progress in (
        _reading(2_000, 0.1),
        _reading(2_500, 0.9),  # too soon
        _reading(3_000, 1.2),
        _reading(3_000, 1.3, is_paused=True),
        _reading(10_000, 1.4, phase="swapping"),
        _reading(10_000, 1.5, phase="done"),
    ):
        say(progress)
    lines = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["phase"], line["records_done"], line["paused"]) for line in lines] == [
        ("reading", 2_000, False),
        ("reading", 3_000, False),
        ("reading", 3_000, True),
        ("swapping", 10_000, False),
        ("done", 10_000, False),
    ]
    assert lines[1] == {
        "phase": "reading",
        "generation": 7,
        "records_done": 3_000,
        "records_total": 10_000,
        "records_per_second": 1_666.7,
        "seconds": 1.2,
        "seconds_left": 4.2,
        "paused": False,
        "differences": [],
    }


def test_the_work_goes_on_when_nobody_listens_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as piped:
        monkeypatch.setattr(sys, "stdout", piped)
        say = Lines()
        for second in (1.0, 3.0, 5.0):
            say(_reading(2_000, second))
        Bar()(_reading(2_000, 7.0))
