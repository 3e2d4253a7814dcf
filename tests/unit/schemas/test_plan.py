import pytest

from schemas.events import Task
from schemas.plan import (
    PROPOSALS_REMEMBERED,
    PlanState,
    approve,
    graph_problem,
    is_busy,
    is_of_child,
    propose,
    proposer,
    ready_tasks,
    reject,
    set_aside,
    update_task,
)


def tasks(**depends_on: str) -> tuple[Task, ...]:
    """`a="b c"`: task a depends on b and c."""
    return tuple(Task(id=name, title=name, depends_on=tuple(needed.split())) for name, needed in depends_on.items())


def in_force(**depends_on: str) -> PlanState:
    return approve(propose(PlanState(), 1, tasks(**depends_on)))


def moved(plan: PlanState, task: str, *statuses) -> PlanState:
    for status in statuses:
        after = update_task(plan, task, status, None)
        assert isinstance(after, PlanState), after
        plan = after
    return plan


def statuses(plan: PlanState) -> dict[str, str]:
    return {name: state.status for name, state in plan.tasks.items()}


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        ((), None),
        (tasks(a="", b="a", c="a b"), None),
        (tasks(a="") + tasks(a=""), "the task id 'a' occurs twice"),
        (tasks(a="b"), "task 'a' depends on 'b', which is no task of this plan"),
        (tasks(a="a"), "tasks wait for each other: a, a"),
        (tasks(a="c", b="a", c="b", d="a"), "tasks wait for each other: a, c, b, a"),
    ],
)
def test_graphs(graph: tuple[Task, ...], problem: str | None):
    assert graph_problem(graph) == problem


def test_a_long_chain_is_no_trouble():
    chain = tuple(Task(id=str(n), title="", depends_on=(str(n + 1),) if n < 20_000 else ()) for n in range(20_001))
    assert graph_problem(chain) is None


def test_a_version_waits_for_an_answer():
    plan = propose(PlanState(), 1, tasks(a=""))
    assert (plan.waiting, plan.in_force, is_busy(plan)) == (1, None, False)
    rejected = reject(plan)
    assert (rejected.waiting, rejected.in_force, rejected.last_answer) == (None, None, "rejected")
    approved = approve(plan)
    assert (approved.waiting, approved.in_force, approved.last_answer) == (None, 1, "approved")
    assert is_busy(approved)


def test_tasks_run_in_the_order_of_their_dependencies():
    plan = in_force(a="", b="a", c="")
    assert [task.id for task in ready_tasks(plan)] == ["a", "c"]
    plan = moved(moved(plan, "a", "running", "succeeded"), "c", "running", "failed")
    assert [task.id for task in ready_tasks(plan)] == ["b"]
    plan = moved(plan, "b", "running")
    assert is_busy(plan)
    assert not is_busy(moved(plan, "b", "cancelled"))


def test_a_task_keeps_its_child():
    plan = update_task(in_force(a=""), "a", "running", "t-2")
    assert isinstance(plan, PlanState)
    assert moved(plan, "a", "succeeded").tasks["a"].child == "t-2"


def test_tasks_do_not_move_back():
    plan = in_force(a="")
    assert update_task(plan, "a", "succeeded", None) == "task 'a' is pending"
    assert update_task(plan, "b", "running", None) == "no task 'b' in the plan"
    assert update_task(moved(plan, "a", "running", "failed"), "a", "running", None) == "task 'a' is failed"


def test_replanning_keeps_tasks_by_id_and_cancels_the_others():
    plan = moved(in_force(a="", b="", c="", d=""), "a", "running")
    plan = moved(moved(plan, "b", "running"), "d", "running", "succeeded")
    waiting = propose(plan, 2, tasks(a="", e="a"))
    assert statuses(waiting) == {"a": "running", "b": "running", "c": "pending", "d": "succeeded"}
    plan = approve(waiting)
    assert (plan.in_force, plan.last_version) == (2, 2)
    assert statuses(plan) == {"a": "running", "e": "pending", "b": "running", "c": "cancelled"}
    assert plan.tasks["e"].task.depends_on == ("a",)
    assert [name for name, state in plan.tasks.items() if state.left_out] == ["b"]
    assert is_busy(plan)
    assert statuses(moved(plan, "b", "cancelled"))["b"] == "cancelled"


def test_a_task_that_is_named_again_goes_on_or_begins_anew():
    plan = moved(moved(in_force(a="", b="", c=""), "a", "running", "failed"), "b", "running", "succeeded")
    plan = moved(plan, "c", "running")
    without = approve(propose(plan, 2, tasks(a="", b="")))
    assert without.tasks["c"].left_out
    again = approve(propose(moved(without, "c", "cancelled"), 3, tasks(a="", b="", c="")))
    assert statuses(again) == {"a": "pending", "b": "succeeded", "c": "pending"}
    kept = approve(propose(without, 3, tasks(a="", b="", c="")))
    assert (kept.tasks["c"].status, kept.tasks["c"].left_out) == ("running", False)


def test_an_answer_knows_what_it_answers():
    plan = propose(PlanState(), 1, tasks(a=""), "2.1.0")
    assert approve(plan).call == "2.1.0"
    rejected = reject(plan, "too much at once")
    assert (rejected.call, rejected.rejection) == ("2.1.0", "too much at once")
    assert propose(rejected, 2, tasks(a="")).rejection is None


def test_what_came_of_a_task_stays_with_it():
    plan = update_task(moved(in_force(a=""), "a", "running"), "a", "succeeded", None, {"text": "done"})
    assert isinstance(plan, PlanState)
    assert plan.tasks["a"].result == {"text": "done"}


def test_a_pending_task_keeps_a_plan_busy_until_it_has_ended():
    plan = moved(in_force(a="", b="a"), "a", "running", "failed")
    assert ready_tasks(plan) == ()
    assert is_busy(plan)
    assert not is_busy(moved(plan, "b", "cancelled"))


def test_a_version_knows_the_call_that_proposed_it():
    plan = approve(propose(PlanState(), 1, tasks(a=""), "1.1.0"))
    plan = propose(plan, 2, tasks(a=""))
    assert (proposer(plan, 1), proposer(plan, 2), plan.call) == ("1.1.0", None, None)
    for version in range(3, 3 + PROPOSALS_REMEMBERED):
        plan = propose(plan, version, tasks(a=""), f"{version}.1.0")
    assert len(plan.proposals) == PROPOSALS_REMEMBERED
    assert proposer(plan, 1) is None
    assert proposer(plan, version) == f"{version}.1.0"


def test_what_a_recorded_session_planned_is_shown_and_not_worked_on():
    plan = moved(moved(in_force(a="", b="a", c=""), "a", "running", "succeeded"), "b", "running")
    recorded = set_aside(plan)
    assert statuses(recorded) == statuses(plan)
    assert not is_busy(recorded)
    again = approve(propose(recorded, 2, tasks(a="", b="a")))
    assert is_busy(again)
    assert statuses(again) == {"a": "succeeded", "b": "pending", "c": "cancelled"}
    assert not again.tasks["c"].left_out


def test_a_recorded_session_leaves_no_version_that_waits():
    recorded = set_aside(propose(PlanState(), 1, tasks(a="")))
    assert (recorded.waiting, recorded.last_answer, recorded.recorded) == (None, "rejected", False)
    assert set_aside(PlanState()) == PlanState()


def test_a_task_is_that_of_its_child():
    plan = update_task(in_force(a="", b=""), "a", "running", "t-2")
    assert isinstance(plan, PlanState)
    assert is_of_child(plan, "a", "t-2")
    assert not is_of_child(plan, "a", "t-3")
    assert not is_of_child(plan, "b", None)
    assert not is_of_child(plan, "c", "t-2")


def test_a_task_knows_when_it_moved_and_which_version_began_it():
    plan = update_task(in_force(a="", b="a"), "a", "running", "t-2", version=1, at_ms=7)
    assert isinstance(plan, PlanState)
    kept = approve(propose(plan, 2, tasks(a="")), 9)
    assert (kept.tasks["a"].begun_in, kept.tasks["a"].moved_ms) == (1, 7)
    left = approve(propose(plan, 2, tasks(c="")), 9)
    left = approve(propose(left, 3, tasks(d="")), 11)
    assert (left.tasks["a"].begun_in, left.tasks["a"].moved_ms, left.tasks["a"].left_out) == (1, 9, True)
