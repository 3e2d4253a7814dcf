"""What requests about plans become: proposals and decisions. Pure, like `accept`."""

from typing import NamedTuple

from schemas.canonical import canonical_json, canonical_model, data_hash
from schemas.events import Event, PlanApproved, PlanProposed, PlanRejected, Task
from schemas.plan import graph_problem
from schemas.state import REMEMBERED_COMMANDS
from services.ingest.commands.accepting.accept import Accepted, AcceptLimits, Command, one, too_large
from services.ingest.http.problems import INVALID_REQUEST, NOT_FOUND, Problem
from services.ingest.http.requests import DecidePlan, ProposePlan

OF_PLAN_DECISIONS = frozenset[type[Event]]({PlanApproved, PlanRejected})


class PlanFacts(NamedTuple):
    """What is known of a thread's plan."""

    last_version: int
    proposed: int | None
    """The version that this very command proposed, if it came before."""
    remembered: str | None = None
    """Where only the fold tells that it came before: how the hash of its event begins."""


def plan_of(request: ProposePlan, limits: AcceptLimits) -> tuple[Task, ...] | Problem:
    tasks = tuple(
        Task(id=task.id, title=task.title, depends_on=task.depends_on, instructions=task.instructions)
        for task in request.tasks
    )
    size = len(canonical_json([task.model_dump(mode="json") for task in tasks]))
    problem = too_large("A plan", size, limits.input_bytes_max)
    if problem is not None:
        return problem
    why = graph_problem(tasks)
    if why is not None:
        return Problem(INVALID_REQUEST, f"This is no plan: {why}.", {"errors": [{"place": "tasks", "detail": why}]})
    return tasks


def propose_plan(command: Command, tasks: tuple[Task, ...], version: int) -> Accepted:
    return one(command, PlanProposed(plan_version=version, tasks=tasks), judged=True, shown={"plan_version": version})


def next_version(facts: PlanFacts, tasks: tuple[Task, ...]) -> int:
    """The same for a command that is sent again."""
    if facts.proposed is not None:
        return facts.proposed
    last, remembered = facts.last_version, facts.remembered
    if remembered is not None:
        for version in range(last, max(0, last - REMEMBERED_COMMANDS), -1):
            event = PlanProposed(plan_version=version, tasks=tasks)
            if data_hash(canonical_model(event)).startswith(remembered):
                return version
    return last + 1


def decide_plan(command: Command, version: int, request: DecidePlan) -> Accepted:
    by = command.principal.actor
    event: Event = PlanApproved(plan_version=version, by=by)
    if request.decision == "reject":
        event = PlanRejected(plan_version=version, by=by, reason=request.reason or "")
    return one(command, event, judged=True, shown={"plan_version": version}, kinds=OF_PLAN_DECISIONS)


def no_such_version(version: int) -> Problem:
    return Problem(NOT_FOUND, f"The thread's plan has no version {version}.")
