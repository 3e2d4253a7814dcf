"""Turn a request about a plan into a proposal or a decision. Pure, like `accept`.

A plan has versions that count up within the thread. A proposal must name the next version, and two proposals may come
at once: both then name the same version, and the fold takes the first.
"""

from typing import NamedTuple

from schemas.canonical import canonical_json, canonical_model, data_hash
from schemas.events import Event, PlanApproved, PlanProposed, PlanRejected, Task
from schemas.plan import graph_problem
from schemas.state import REMEMBERED_COMMANDS
from services.ingest.commands.accepting.accept import Accepted, AcceptLimits, Command, one, too_large
from services.ingest.http.problems import INVALID_REQUEST, NOT_FOUND, Problem
from services.ingest.http.requests import DecidePlan, ProposePlan

OF_PLAN_DECISIONS = frozenset[type[Event]]({PlanApproved, PlanRejected})
"""Events that a decision about a plan may become."""


class PlanFacts(NamedTuple):
    """What is known of a thread's plan."""

    last_version: int
    """The newest version that was proposed; 0 before the first."""
    proposed: int | None
    """The version that an earlier try of this command proposed; None if the views know of none."""
    remembered: str | None = None
    """The beginning of the hash of the earlier try's event, if only the fold remembers that try (ephemeral threads)."""


def plan_of(request: ProposePlan, limits: AcceptLimits) -> tuple[Task, ...] | Problem:
    """Return the tasks of a proposal, or the problem that they are too large or form no graph."""
    tasks = tuple(
        Task(id=task.id, title=task.title, depends_on=task.depends_on, instructions=task.instructions)
        for task in request.tasks
    )
    size = len(canonical_json([task.model_dump(mode="json") for task in tasks]))
    problem = too_large("The plan", size, limits.input_bytes_max)
    if problem is not None:
        return problem
    why = graph_problem(tasks)
    if why is not None:
        return Problem(INVALID_REQUEST, f"This is no plan: {why}.", {"errors": [{"place": "tasks", "detail": why}]})
    return tasks


def propose_plan(command: Command, tasks: tuple[Task, ...], version: int) -> Accepted:
    """Accept a proposal. The answer waits for its effect, because another proposal may have taken the version."""
    return one(command, PlanProposed(plan_version=version, tasks=tasks), judged=True, shown={"plan_version": version})


def next_version(facts: PlanFacts, tasks: tuple[Task, ...]) -> int:
    """Return the version of a proposal. A command that is sent again gets the version that it got the first time."""
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
    """Accept that a version is approved or rejected by the caller."""
    by = command.principal.actor
    event: Event = PlanApproved(plan_version=version, by=by)
    if request.decision == "reject":
        event = PlanRejected(plan_version=version, by=by, reason=request.reason or "")
    return one(command, event, judged=True, shown={"plan_version": version}, kinds=OF_PLAN_DECISIONS)


def no_such_version(version: int) -> Problem:
    """Return the problem of a version that the thread's plan does not have."""
    return Problem(NOT_FOUND, f"The thread's plan has no version {version}.")
