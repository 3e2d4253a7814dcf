"""Rows of plans, tasks and artifacts."""

import pytest

from services.projector.projections.changes import Applied
from services.projector.projections.plans import plan_changes
from tests.support.histories import NO_HASH, RUNTIME, USER, History
from tests.support.plans import planned, with_artifacts
from tests.support.view_tables import Projected, Row
from tests.support.walks import as_read

SIZES = pytest.mark.parametrize("size", [1, 1_000])


def rows(history: History, table: str, size: int) -> list[Row]:
    return Projected().project(as_read(history), size).all(table)


@SIZES
def test_each_version_says_what_became_of_it(size: int) -> None:
    found = rows(planned(History()), "plans", size)
    assert [(row["version"], row["status"], row["decision_reason"]) for row in found] == [
        (1, "superseded", None),
        (2, "rejected", "not yet"),
        (3, "superseded", None),
        (4, "in_force", None),
    ]
    first, rejected, never_answered, last = found
    assert (first["proposed_by"], first["decided_by"], rejected["decided_by"]) == (RUNTIME, USER, USER)
    assert never_answered["decided_seq"] is None
    assert never_answered["superseded_seq"] == last["proposed_seq"]
    assert first["superseded_seq"] == last["decided_seq"]
    assert first["superseded_at"] == last["decided_at"]
    assert [task["id"] for task in first["tasks"]] == ["look", "mend", "clean"]
    assert first["tasks"][0] == {"id": "look", "title": "Look", "depends_on": [], "instructions": "Read the tests."}


@SIZES
def test_tasks_go_on_in_the_version_that_keeps_them(size: int) -> None:
    found = rows(planned(History()), "tasks", size)
    assert {(row["version"], row["task"]): (row["status"], row["child"], row["result"]) for row in found} == {
        (1, "look"): ("succeeded", "t-look", {"found": 2}),
        (1, "mend"): ("continued", "t-mend", None),
        (1, "clean"): ("cancelled", None, None),
        (4, "look"): ("succeeded", "t-look", None),
        (4, "mend"): ("failed", "t-mend", "it broke"),
        (4, "tell"): ("pending", None, None),
    }
    by_key = {(row["version"], row["task"]): row for row in found}
    assert [by_key[4, name]["place"] for name in ("look", "mend", "tell")] == [0, 1, 2]
    assert by_key[4, "tell"]["depends_on"] == ["mend"]
    look = by_key[1, "look"]
    assert look["started_at"] < look["ended_at"]
    assert by_key[1, "clean"]["ended_at"] is not None
    assert by_key[1, "mend"]["ended_at"] is None
    assert by_key[4, "mend"]["started_at"] is None
    assert by_key[4, "mend"]["ended_at"] is not None


@SIZES
def test_every_mention_of_an_artifact_is_a_row(size: int) -> None:
    found = rows(with_artifacts(History()), "artifacts", size)
    assert [(row["part"], row["kind"], row["call"], row["sha256"], row["size"], row["name"]) for row in found] == [
        (0, "recorded", None, NO_HASH, 3, None),
        (0, "tool_call", "1.1.0", NO_HASH, 12, "report.txt"),
        (1, "tool_call", "1.1.0", "0" * 64, 0, None),
    ]


def test_a_mention_that_took_no_effect_is_none() -> None:
    history = with_artifacts(History())
    again = next(made for made in history.encoded if made.record.kind == "tool_call.finished")
    history.add(again)
    assert history.verdicts[-1].effect != "applied"
    assert len(rows(history, "artifacts", 1)) == 3


def test_what_is_not_about_a_plan_changes_none() -> None:
    history = History().idle()
    record, verdict = history.encoded[-1].record, history.verdicts[-1]
    assert not list(plan_changes(Applied(record, history.state, history.state, verdict)))
