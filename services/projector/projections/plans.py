"""The rows of `plans`, one per version of a thread's plan, and of `tasks`, for each version that took force.

A task has a row per version. When another version takes force, the tasks that it keeps by their id continue in new
rows. The rows of the previous version stay, and say what became of each task there: it ended, it continued, or it was
cancelled. So a reader sees each version as it was worked on, without joining versions.
"""

from collections.abc import Iterator

from schemas.events import PlanApproved, PlanProposed, PlanRejected, TaskUpdated
from schemas.plan import MOVES, PlanState, TaskState
from services.projector.projections.changes import (
    Applied,
    Change,
    ChangedRow,
    Columns,
    NewRow,
    given,
    json_bytes,
    json_models,
)


def plan_changes(applied: Applied) -> Iterator[Change]:
    """Yield what the record changes in the rows of plans and tasks. Called only if the plan in the state changed."""
    record, before, _, _ = applied
    match record.data:
        case PlanProposed() as data:
            yield from _superseded(applied, before.plan.waiting)
            yield NewRow("plans", (*record.key, data.plan_version), _proposed(applied, data))
        case PlanApproved() as data:
            yield from _superseded(applied, before.plan.in_force)
            yield ChangedRow("plans", (*record.key, data.plan_version), _answered(applied, "in_force", data.by))
            yield from _tasks_left_behind(applied)
            yield from _tasks_in_force(applied, data.plan_version)
        case PlanRejected() as data:
            columns = _answered(applied, "rejected", data.by) | {"decision_reason": data.reason}
            yield ChangedRow("plans", (*record.key, data.plan_version), columns)
        case TaskUpdated() as data:
            yield ChangedRow("tasks", (*record.key, before.plan.in_force or 0, data.task), _moved(applied, data))
        case _:
            yield from _set_aside(applied)


def _set_aside(applied: Applied) -> Iterator[Change]:
    """Reject the version that still waits when an import ends. The state says why."""
    waiting = applied.before.plan.waiting
    if waiting is not None:
        columns = _answered(applied, "rejected", applied.record.actor)
        columns["decision_reason"] = applied.after.plan.rejection
        yield ChangedRow("plans", (*applied.record.key, waiting), columns)


def _proposed(applied: Applied, data: PlanProposed) -> Columns:
    return {
        "status": "waiting",
        "tasks": json_models(data.tasks),
        "proposed_seq": applied.after.seq,
        "proposed_at": applied.record.time_ms,
        "proposed_by": applied.record.actor,
        "call": data.call,
    }


def _answered(applied: Applied, status: str, by: str) -> Columns:
    """Return the columns of an answer to a proposal."""
    return {
        "status": status,
        "decided_by": by,
        "decided_seq": applied.after.seq,
        "decided_at": applied.record.time_ms,
    }


def _superseded(applied: Applied, version: int | None) -> Iterator[Change]:
    """Mark the version that another one replaces, if there is one."""
    if version is not None:
        columns: Columns = {
            "status": "superseded",
            "superseded_seq": applied.after.seq,
            "superseded_at": applied.record.time_ms,
        }
        yield ChangedRow("plans", (*applied.record.key, version), columns)


def _tasks_in_force(applied: Applied, version: int) -> Iterator[Change]:
    """Add the tasks of the version, then running tasks that it left out: these are being stopped, and must show."""
    record, before, after, _ = applied
    named = [after.plan.tasks[task.id] for task in before.plan.proposed]
    left_out = [standing for standing in after.plan.tasks.values() if standing.left_out]
    for place, standing in enumerate([*named, *left_out]):
        task = standing.task
        columns: Columns = {
            "place": place,
            "title": task.title,
            "instructions": task.instructions,
            "depends_on": task.depends_on,
            "left_out": standing.left_out,
            "status": standing.status,
            "child": standing.child,
            "result": None if standing.result is None else json_bytes(standing.result),
            "changed_seq": after.seq,
        }
        yield NewRow("tasks", (*record.key, version, task.id), columns)


def _tasks_left_behind(applied: Applied) -> Iterator[Change]:
    """Close the rows of the previous version whose tasks have not ended. Ended tasks keep their row as it is."""
    record, before, after, _ = applied
    if before.plan.in_force is None:
        return
    for name, standing in before.plan.tasks.items():
        if MOVES[standing.status]:
            columns: Columns = {"status": "continued", "changed_seq": after.seq}
            if not _is_in_force(after.plan, name):
                columns = {"status": "cancelled", "changed_seq": after.seq, "ended_at": record.time_ms}
            yield ChangedRow("tasks", (*record.key, before.plan.in_force, name), columns)


def _is_in_force(plan: PlanState, name: str) -> bool:
    """Tell whether the version now in force has the task, and does not cancel it."""
    standing: TaskState | None = plan.tasks.get(name)
    return standing is not None and standing.status != "cancelled"


def _moved(applied: Applied, data: TaskUpdated) -> Columns:
    """Return the new status of a task. A status from which no move leads is its end."""
    at = applied.record.time_ms
    return given(
        status=data.status,
        child=data.child,
        result=None if data.result is None else json_bytes(data.result),
        changed_seq=applied.after.seq,
        started_at=at if data.status == "running" else None,
        ended_at=None if MOVES[data.status] else at,
    )
