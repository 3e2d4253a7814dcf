"""Rows of plans, tasks and artifacts."""

import pytest
from pydantic import JsonValue

from schemas.config import Skill
from schemas.events import (
    ArtifactItem,
    FileChange,
    InputSubmitted,
    PlanApproved,
    PlanProposed,
    SkillLoaded,
    TaskUpdated,
    TextItem,
    ThreadConfigured,
    ThreadCreated,
    ThreadImportEnded,
    ToolCallFinished,
)
from services.projector.projections.changes import Applied
from services.projector.projections.plans import plan_changes
from tests.support.recorded.histories import CONFIG, EXECUTOR, IMPORTER, NO_HASH, RUNTIME, USER, History, created
from tests.support.recorded.plans import CLEAN, LOOK, MEND, planned, with_artifacts
from tests.support.recorded.walks import as_read
from tests.support.stored.view_tables import Projected, Row

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
        (4, "look"): ("succeeded", "t-look", {"found": 2}),
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


def test_a_mention_that_took_no_effect_is_a_row_all_the_same() -> None:
    history = with_artifacts(History())
    again = next(made for made in history.encoded if made.record.kind == "tool_call.finished")
    history.add(again)
    assert history.verdicts[-1].effect != "applied"
    found = rows(history, "artifacts", 1)
    assert [row["effect"] for row in found] == ["applied"] * 3 + [history.verdicts[-1].effect] * 2


def test_every_kind_of_mention_is_found() -> None:
    """Whoever deletes what is not named goes by these rows."""
    skill = Skill(name="review", version="1", sha256="a" * 64)
    history = History()
    config = CONFIG.model_copy(update={"skills": (skill,)})
    history.apply(ThreadCreated(config=config), USER)
    patch: JsonValue = [{"name": "deploy", "version": "2", "sha256": "b" * 64}, "nonsense", {"sha256": 7}]
    history.append(ThreadConfigured(patch={"skills": patch}), USER)
    history.append(ThreadConfigured(patch={"skills": None}), USER)
    item = ArtifactItem(sha256="c" * 64, size=3, media_type="text/plain", name="log")
    history.append(InputSubmitted(input="i1", items=(TextItem(text="see"), item)), USER)
    history.append(SkillLoaded(name="review", skill_version="1", sha256="a" * 64))
    history.append(
        ToolCallFinished(
            call="9.9.9",
            attempt=1,
            claim="none",
            outcome="succeeded",
            changes=(
                FileChange(path="a.txt", before="d" * 64, after="e" * 64, mode=0o644),
                FileChange(path="b.txt", before=None, after="f" * 64),
                FileChange(path="c.txt", before="d" * 64),
            ),
        ),
        EXECUTOR,
    )
    found = rows(history, "artifacts", 1)
    assert [(row["kind"], row["sha256"][0], row["name"]) for row in found] == [
        ("skill", "a", "review"),
        ("skill", "b", "deploy"),
        ("input", "c", "log"),
        ("skill", "a", "review"),
        ("before", "d", "a.txt"),
        ("after", "e", "a.txt"),
        ("after", "f", "b.txt"),
        ("before", "d", "c.txt"),
    ]
    assert [row["part"] for row in found] == [0, 0, 0, 0, 0, 1, 2, 3]


def test_what_is_not_about_a_plan_changes_none() -> None:
    history = History().idle()
    record, verdict = history.encoded[-1].record, history.verdicts[-1]
    assert not list(plan_changes(Applied(record, history.state, history.state, verdict)))


@SIZES
def test_a_task_that_a_version_leaves_out_is_shown_until_it_has_ended(size: int) -> None:
    history = History().idle()
    for version, tasks in ((1, (LOOK, MEND, CLEAN)), (2, (CLEAN,)), (3, (CLEAN,))):
        history.apply(PlanProposed(plan_version=version, tasks=tasks), RUNTIME)
        history.apply(PlanApproved(plan_version=version, by=USER), USER)
        if version == 1:
            history.apply(TaskUpdated(plan_version=1, task="look", status="running", child="t-look"), RUNTIME)
    ended = TaskUpdated(plan_version=1, task="look", status="cancelled", child="t-look", result="stopped")
    history.apply(ended, RUNTIME)
    found = {(row["version"], row["task"]): row for row in rows(history, "tasks", size)}
    assert {place: (row["status"], row["left_out"]) for place, row in found.items()} == {
        (1, "look"): ("continued", False),
        (1, "mend"): ("cancelled", False),
        (1, "clean"): ("continued", False),
        (2, "clean"): ("continued", False),
        (2, "look"): ("continued", True),
        (3, "clean"): ("pending", False),
        (3, "look"): ("cancelled", True),
    }
    assert (found[3, "look"]["place"], found[3, "look"]["child"], found[3, "look"]["result"]) == (
        1,
        "t-look",
        "stopped",
    )


@SIZES
def test_a_version_shows_the_call_that_proposed_it(size: int) -> None:
    history = History().with_dispatched_call("idempotent", pool="thread")
    history.apply(PlanProposed(plan_version=1, tasks=(LOOK,), call="1.1.0"), RUNTIME)
    history.apply(PlanProposed(plan_version=2, tasks=(LOOK,)), USER)
    assert [row["call"] for row in rows(history, "plans", size)] == ["1.1.0", None]


@SIZES
@pytest.mark.parametrize("is_approved", [True, False])
def test_what_a_recorded_session_planned_stays_as_it_was(size: int, is_approved: bool) -> None:
    history = History()
    history.apply(created(importing=True), IMPORTER)
    history.apply(PlanProposed(plan_version=1, tasks=(LOOK,)), IMPORTER)
    if is_approved:
        history.apply(PlanApproved(plan_version=1, by="unrecorded"), IMPORTER)
        history.apply(TaskUpdated(plan_version=1, task="look", status="running"), IMPORTER)
    history.apply(ThreadImportEnded(source="s"), IMPORTER)
    (row,) = rows(history, "plans", size)
    shown = (row["status"], row["decided_by"], row["decision_reason"])
    if is_approved:
        assert shown == ("in_force", "unrecorded", None)
    else:
        assert shown == ("rejected", IMPORTER, "the recorded session had no answer")
    assert [row["status"] for row in rows(history, "tasks", size)] == ["running"] * is_approved
