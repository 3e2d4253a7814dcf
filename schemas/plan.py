"""Plans: versioned graphs of tasks. Pure; the thread's fold calls it for plan events.

A version waits until it is approved or rejected; a newer version takes the place of one that waits. When a version
comes in force, tasks that it keeps by id go on with their status, and the others are cancelled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal

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


@dataclass(frozen=True)
class PlanState:
    last_version: int = 0
    waiting: int | None = None
    """The version that waits for an answer."""
    proposed: tuple[Task, ...] = ()
    """Its tasks."""
    in_force: int | None = None
    tasks: Mapping[str, TaskState] = field(default_factory=dict)
    """Of the version in force, and those that it cancelled by leaving them out."""
    last_answer: Literal["approved", "rejected"] | None = None


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


def propose(plan: PlanState, version: int, tasks: tuple[Task, ...]) -> PlanState:
    return replace(plan, last_version=version, waiting=version, proposed=tasks, last_answer=None)


def reject(plan: PlanState) -> PlanState:
    return replace(plan, waiting=None, proposed=(), last_answer="rejected")


def approve(plan: PlanState) -> PlanState:
    """The waiting version comes in force."""
    kept: dict[str, TaskState] = {}
    for task in plan.proposed:
        before = plan.tasks.get(task.id)
        kept[task.id] = replace(before, task=task) if before is not None else TaskState(task)
    for task_id, state in plan.tasks.items():
        if task_id not in kept and MOVES[state.status]:
            kept[task_id] = replace(state, status="cancelled")
    return PlanState(plan.last_version, None, (), plan.waiting, kept, "approved")


def update_task(plan: PlanState, task: str, status: TaskStatus, child: str | None) -> PlanState | str:
    """The new plan, or why the task cannot move so."""
    state = plan.tasks.get(task)
    if state is None:
        return f"no task {task!r} in the plan"
    if status not in MOVES[state.status]:
        return f"task {task!r} is {state.status}"
    moved = replace(state, status=status, child=child or state.child)
    return replace(plan, tasks={**plan.tasks, task: moved})


def _succeeded(plan: PlanState, task: str) -> bool:
    state = plan.tasks.get(task)
    return state is not None and state.status == "succeeded"
