"""Plans: versioned graphs of tasks. Pure; the thread's fold calls it for plan events.

A version waits until it is approved or rejected; a newer version takes the place of one that waits. When a version
comes in force, tasks that it keeps by id go on with their status, but those that failed or were cancelled begin anew;
tasks that it leaves out are cancelled, at once or, where one is running, when it has stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from pydantic import JsonValue

from schemas.events import Task, TaskStatus

MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    "pending": frozenset({"running", "cancelled", "failed"}),
    "running": frozenset({"succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


@dataclass(frozen=True)
class TaskState:
    task: Task
    status: TaskStatus = "pending"
    child: str | None = None
    result: JsonValue = None
    """As the last update of the task told it."""
    left_out: bool = False
    """Runs, though the version in force does not name it: it is being stopped, and nothing waits for it."""


@dataclass(frozen=True)
class PlanState:
    last_version: int = 0
    waiting: int | None = None
    """The version that waits for an answer."""
    proposed: tuple[Task, ...] = ()
    """Its tasks."""
    in_force: int | None = None
    tasks: Mapping[str, TaskState] = field(default_factory=dict)
    """Of the version in force, and those that it left out."""
    last_answer: Literal["approved", "rejected"] | None = None
    call: str | None = None
    """The call that proposed the last version, where one did."""
    rejection: str | None = None
    """Why the last version was rejected."""


def graph_problem(tasks: Sequence[Task]) -> str | None:
    """Why the tasks are no plan: an id twice, an unknown dependency, a cycle. None where they are one."""
    waits_for = {task.id: task.depends_on for task in tasks}
    if len(waits_for) < len(tasks):
        return "a task id occurs twice"
    for task in tasks:
        for needed in task.depends_on:
            if needed not in waits_for:
                return f"task {task.id!r} depends on {needed!r}, which is no task of this plan"
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        return f"tasks wait for each other: {', '.join(reversed(error.args[1]))}"[:300]
    return None


def ready_tasks(plan: PlanState) -> tuple[Task, ...]:
    """Pending tasks of the version in force whose dependencies have all succeeded."""
    return tuple(
        state.task
        for state in plan.tasks.values()
        if state.status == "pending" and all(_succeeded(plan, needed) for needed in state.task.depends_on)
    )


def is_busy(plan: PlanState) -> bool:
    """Whether the runtime has something to do or to wait for in this plan."""
    return any(state.status == "running" for state in plan.tasks.values()) or bool(ready_tasks(plan))


def propose(plan: PlanState, version: int, tasks: tuple[Task, ...], call: str | None = None) -> PlanState:
    return replace(
        plan, last_version=version, waiting=version, proposed=tasks, last_answer=None, call=call, rejection=None
    )


def reject(plan: PlanState, reason: str | None = None) -> PlanState:
    return replace(plan, waiting=None, proposed=(), last_answer="rejected", rejection=reason)


def approve(plan: PlanState) -> PlanState:
    """The waiting version comes in force."""
    kept: dict[str, TaskState] = {}
    for task in plan.proposed:
        before = plan.tasks.get(task.id)
        goes_on = before is not None and before.status not in {"failed", "cancelled"}
        kept[task.id] = (
            replace(before, task=task, left_out=False) if before is not None and goes_on else TaskState(task)
        )
    for task_id, state in plan.tasks.items():
        if task_id in kept or not MOVES[state.status]:
            continue
        running = state.status == "running"
        kept[task_id] = replace(state, status="running" if running else "cancelled", left_out=running)
    return PlanState(plan.last_version, None, (), plan.waiting, kept, "approved", plan.call)


def update_task(
    plan: PlanState, task: str, status: TaskStatus, child: str | None, result: JsonValue = None
) -> PlanState | str:
    """The new plan, or why the task cannot move so."""
    state = plan.tasks.get(task)
    if state is None:
        return f"no task {task!r} in the plan"
    if status not in MOVES[state.status]:
        return f"task {task!r} is {state.status}"
    moved = replace(state, status=status, child=child or state.child, result=result)
    return replace(plan, tasks={**plan.tasks, task: moved})


def _succeeded(plan: PlanState, task: str) -> bool:
    state = plan.tasks.get(task)
    return state is not None and state.status == "succeeded"
