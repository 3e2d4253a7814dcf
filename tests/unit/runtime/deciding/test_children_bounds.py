"""What a child thread may never have, and what is said of many children at once."""

from typing import Any

import pytest

from schemas.canonical import call_hash
from schemas.config import Config
from schemas.events import (
    Edited,
    Lineage,
    PlanApproved,
    PlanProposed,
    SkillLoaded,
    Task,
    TaskUpdated,
    ThreadImportEnded,
    ThreadImportStarted,
    ToolCallDispatched,
)
from schemas.ids import derive_child_input
from schemas.state import SKILLS_MAX
from services.chassis.catalog.tool_arguments import ArgumentCheck
from services.runtime.deciding import children
from services.runtime.deciding.children import cut
from services.runtime.deciding.plans import _told, task_text
from tests.support.recorded.deciding import appended, with_calls
from tests.support.recorded.histories import (
    IMPORTER,
    KEY,
    NO_HASH,
    USER,
    History,
    approval_requested,
    approved,
    created,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)
from tests.unit.runtime.deciding.test_children import CATALOG, CHILD, begun, own_end, spawn


@pytest.mark.parametrize(("own", "given"), [(("read", "spawn_thread"), ("read",)), (None, ("read", "shell"))])
def test_arguments_that_a_person_edited_give_a_child_no_tool_that_its_parent_lacks(
    own: tuple[str, ...] | None, given: tuple[str, ...]
) -> None:
    history = with_calls(spawn(), tools=own)
    args: dict[str, Any] = {"task": "count", "tools": ["read", "shell"]}
    history.apply(approval_requested(history.call("1.1.0")))
    edited = Edited(args=args, call_hash=call_hash("spawn_thread", args))
    history.apply(approved(history.call("1.1.0"), USER, edited=edited), USER)
    appended(history, ToolCallDispatched, catalog=CATALOG)
    assert begun(history).config.tools == given


def test_a_child_has_no_model_that_no_other_thread_may_have() -> None:
    check = ArgumentCheck()
    assert check.problem(children.SPAWN_THREAD, {"task": "count", "model": "m" * 200}, None) is None
    assert check.problem(children.SPAWN_THREAD, {"task": "count", "model": "m" * 201}, None) is not None


@pytest.mark.parametrize("bytes_max", [0, 20, 200, 4_096])
def test_what_is_cut_is_not_longer_than_it_may_be_and_the_note(bytes_max: int) -> None:
    note = len(cut("é" * 5_000, 0, CHILD.thread).encode())
    assert len(cut("é" * 5_000, bytes_max, CHILD.thread).encode()) <= max(bytes_max, note)


def of_many(count: int) -> History:
    """All of them have succeeded, with much to say, but the last, which depends on them."""
    history = History().idle()
    names = [f"t{number}" for number in range(count)]
    tasks = (*(Task(id=name, title=name) for name in names), Task(id="last", title="L", depends_on=tuple(names)))
    history.apply(PlanProposed(plan_version=1, tasks=tasks))
    history.apply(PlanApproved(plan_version=1, by=USER), USER)
    for name in names:
        history.apply(TaskUpdated(plan_version=1, task=name, status="running", child=CHILD.thread))
        history.apply(
            TaskUpdated(plan_version=1, task=name, status="succeeded", child=CHILD.thread, result="é" * 2_000)
        )
    return history


def test_what_is_told_of_many_tasks_fits_a_record() -> None:
    plan = of_many(999).state.plan
    assert len(str(_told(list(plan.tasks.values()))).encode()) < 512 * 1024
    assert len(task_text(plan, plan.tasks["last"].task).encode()) < 512 * 1024


def test_another_version_of_a_skill_takes_the_place_of_none_but_its_own() -> None:
    history = History().idle()
    for number in range(SKILLS_MAX):
        history.apply(SkillLoaded(name=f"s{number}", skill_version="1", sha256=NO_HASH))
    history.apply(SkillLoaded(name="s9", skill_version="2", sha256=NO_HASH))
    assert len(history.state.skills) == SKILLS_MAX and history.state.skills["s9"].version == "2"
    history.apply(SkillLoaded(name="new", skill_version="1", sha256=NO_HASH))
    assert "s0" not in history.state.skills


def test_an_imported_sub_agent_that_goes_on_tells_its_parent_nothing() -> None:
    history = History(key=CHILD)
    lineage = Lineage(kind="child", parent=KEY.thread, seq=1, chain="0" * 64, call="1.1.0", depth=1)
    history.apply(created(config=Config(model="m"), lineage=lineage, importing=True), IMPORTER)
    history.apply(ThreadImportStarted(source="s"), IMPORTER)
    history.apply(submitted("of the session"), IMPORTER)
    history.apply(turn_started(history.state), IMPORTER)
    history.apply(ThreadImportEnded(source="s"), IMPORTER)
    assert own_end(history) is None
    history.apply(submitted("live"), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "42"))
    history.apply(turn_ended(history.state))
    assert own_end(history) is None
    assert derive_child_input(CHILD) not in history.state.inputs
