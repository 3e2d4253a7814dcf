"""A plan is a versioned graph of tasks. This is pure, and the thread's fold calls it for plan events.

A version waits until it is approved or rejected; a newer version takes the place of one that waits. When a version
comes in force, tasks that it keeps by id go on with their status, but those that failed or were cancelled begin anew;
tasks that it leaves out are cancelled, at once or, where one is running, when it has stopped. The plan of a session
that was recorded elsewhere is shown as it was left: nobody works on it until another version comes in force.
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
"""Status of a task → statuses that it may move to. Statuses without moves are final."""


PROPOSALS_REMEMBERED = 8
"""Calls whose version is remembered: no more than one call at a time waits for what becomes of its version."""


@dataclass(frozen=True)
class TaskState:
    """A task and how far it is."""

    task: Task
    status: TaskStatus = "pending"
    child: str | None = None
    """The thread that works on it."""
    result: JsonValue = None
    """What the last update of the task reported."""
    begun_in: int | None = None
    """The version in which it began to run: its child was told that one."""
    moved_ms: int = 0
    """When its status changed last, or a version left it out while it ran. Milliseconds since 1970."""
    left_out: bool = False
    """It runs although the version in force does not name it: it is being stopped, and nothing waits for it."""


@dataclass(frozen=True)
class PlanState:
    """The plan of a thread: the version in force, and the one that waits."""

    last_version: int = 0
    """Number of the last version that was proposed; 0 before the first."""
    waiting: int | None = None
    """The version that waits for an answer."""
    proposed: tuple[Task, ...] = ()
    """Tasks of the version that waits."""
    in_force: int | None = None
    """The version in force."""
    tasks: Mapping[str, TaskState] = field(default_factory=dict)
    """Tasks of the version in force, and those that it left out while they ran."""
    last_answer: Literal["approved", "rejected"] | None = None
    call: str | None = None
    """The call that proposed the last version, where one did."""
    rejection: str | None = None
    """Why the last version was rejected."""
    proposals: Mapping[str, int] = field(default_factory=dict)
    """Call → version that it proposed, for the last few calls. A call proposes one version only."""
    recorded: bool = False
    """The version in force came with an imported session: nobody works on it."""


def graph_problem(tasks: Sequence[Task]) -> str | None:
    """Return why the tasks are not a plan (an id twice, an unknown dependency, a cycle), or None."""
    waits_for: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        if task.id in waits_for:
            return f"the task id {task.id!r} occurs twice"
        waits_for[task.id] = task.depends_on
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
    """Return the pending tasks of the version in force whose dependencies have all succeeded."""
    return tuple(
        state.task
        for state in plan.tasks.values()
        if state.status == "pending" and all(_succeeded(plan, needed) for needed in state.task.depends_on)
    )


def is_busy(plan: PlanState) -> bool:
    """Return whether the runtime has something to do or to wait for in the version in force: a pending task is begun,
    waits for another one, or has to be cancelled because that one did not succeed.
    """
    return not plan.recorded and any(MOVES[state.status] for state in plan.tasks.values())


def proposer(plan: PlanState, version: int | None) -> str | None:
    """Return the call that proposed the version, or None where a person did."""
    return next((call for call, proposed in plan.proposals.items() if proposed == version), None)


def propose(plan: PlanState, version: int, tasks: tuple[Task, ...], call: str | None = None) -> PlanState:
    """Return the plan with a version that waits, in the place of one that waited before."""
    proposals = plan.proposals
    if call is not None:
        proposals = dict([*proposals.items(), (call, version)][-PROPOSALS_REMEMBERED:])
    return replace(
        plan,
        last_version=version,
        waiting=version,
        proposed=tasks,
        last_answer=None,
        call=call,
        rejection=None,
        proposals=proposals,
    )


def reject(plan: PlanState, reason: str | None = None) -> PlanState:
    return replace(plan, waiting=None, proposed=(), last_answer="rejected", rejection=reason)


def approve(plan: PlanState, at_ms: int = 0) -> PlanState:
    """The waiting version comes in force."""
    kept: dict[str, TaskState] = {}
    for task in plan.proposed:
        before = plan.tasks.get(task.id)
        over = {"failed", "cancelled", "pending", "running"} if plan.recorded else {"failed", "cancelled"}
        goes_on = before is not None and before.status not in over
        kept[task.id] = (
            replace(before, task=task, left_out=False) if before is not None and goes_on else TaskState(task)
        )
    for task_id, state in plan.tasks.items():
        if task_id in kept or not MOVES[state.status]:
            continue
        running = state.status == "running" and not plan.recorded
        stopping = state if state.left_out else replace(state, moved_ms=at_ms)
        kept[task_id] = replace(stopping, status="running" if running else "cancelled", left_out=running)
    return PlanState(plan.last_version, None, (), plan.waiting, kept, "approved", plan.call, proposals=plan.proposals)


def set_aside(plan: PlanState) -> PlanState:
    """Return the plan after the import of a session: what was planned there is shown, and nobody continues it by
    itself.
    """
    if plan.waiting is not None:
        plan = reject(plan, "the recorded session had no answer")
    return replace(plan, recorded=True) if plan.in_force is not None else plan


def update_task(
    plan: PlanState,
    task: str,
    status: TaskStatus,
    child: str | None,
    result: JsonValue = None,
    version: int | None = None,
    at_ms: int = 0,
) -> PlanState | str:
    """Return the new plan, or why the task cannot move so."""
    state = plan.tasks.get(task)
    if state is None:
        return f"no task {task!r} in the plan"
    if status not in MOVES[state.status]:
        return f"task {task!r} is {state.status}"
    if state.child is not None and child != state.child and (child is not None or status == "cancelled"):
        # It was cancelled, or ended by a child, in the belief of an owner who had not read that this child began.
        return f"thread {state.child} works on task {task!r}"
    begun_in = version if status == "running" else state.begun_in
    moved = replace(state, status=status, child=child or state.child, result=result, begun_in=begun_in, moved_ms=at_ms)
    return replace(plan, tasks={**plan.tasks, task: moved})


def waits_for(plan: PlanState, task: str) -> tuple[str, ...]:
    """Return the tasks that have to succeed before this one begins."""
    state = plan.tasks.get(task)
    return () if state is None else tuple(needed for needed in state.task.depends_on if not _succeeded(plan, needed))


def is_of_child(plan: PlanState, task: str, child: str | None) -> bool:
    """Return whether this thread works on the task, whichever version began it."""
    state = plan.tasks.get(task)
    return child is not None and state is not None and state.child == child


def _succeeded(plan: PlanState, task: str) -> bool:
    state = plan.tasks.get(task)
    return state is not None and state.status == "succeeded"
