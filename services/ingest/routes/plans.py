"""Plans: propose a version, approve or reject one. They are read with the other lists of a thread.

Both answer once they were folded: a version is the next one or is refused, and its first answer counts.
"""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from schemas.events import PlanProposed
from services.ingest.commands.accepting import plans as accept_plans
from services.ingest.commands.accepting.accept import Command
from services.ingest.dependencies import dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.problems import NOT_FOUND, VIEWS_BEHIND, VIEWS_UNAVAILABLE, Problem, ProblemError
from services.ingest.http.requests import DecidePlan, ProposePlan
from services.ingest.routes.parameters import command_of, number_of, read_body, run
from services.ingest.routes.threads import TO_A_THREAD

router = APIRouter(tags=["plans"])


@router.post(
    "/v1/threads/{thread}/plan",
    summary="Propose a plan, or another version of it",
    description="Tasks that depend on each other: each runs as a child thread once those that it depends on have "
    "succeeded. By the thread's `plan_approval` the version comes in force at once, or waits for a decision. It takes "
    "the place of a version that waits; once it is in force, tasks that it keeps by their id go on, those that had "
    "failed or were cancelled begin anew, and the others are stopped. Without `version` it is the next one; with it, "
    "one that another has taken meanwhile is refused: 409.",
    responses=openapi.answers(CommandAnswer, (200, 202), TO_A_THREAD),
    openapi_extra=openapi.command(ProposePlan),
)
async def propose_plan(request: Request) -> Response:
    command = await command_of(request, "plan")
    wanted = await read_body(request, ProposePlan)
    found = dependencies(request)
    tasks = accept_plans.plan_of(wanted, found.limits)
    if isinstance(tasks, Problem):
        raise ProblemError(tasks)
    version = wanted.version
    if version is None:
        await found.known.require(command.key)
        await found.known.catch_up(command.key)
        facts = await found.views.plan_facts(command.key, command.event_id(PlanProposed))
        version = accept_plans.next_version(facts, tasks)
    return await run(request, accept_plans.propose_plan(command, tasks, version))


@router.post(
    "/v1/threads/{thread}/plan/{version}/decision",
    summary="Approve or reject a version of the plan",
    description="The first answer in the log counts, whoever gives it; it dies with its version. A later one is told "
    "what was decided: 409 with `decided` {by, decision, at, reason} and `plan` {version, status}. The reason of a "
    "rejection is told to the model that proposed the version. Needs the scope `tools:decide`.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND)),
    openapi_extra=openapi.command(DecidePlan),
)
async def decide_plan(request: Request) -> Response:
    version = number_of(request, "version")
    command = await command_of(request, f"plan/{version}/decision", "tools:decide")
    wanted = await read_body(request, DecidePlan)
    await _require_version(request, command, version)
    return await run(request, accept_plans.decide_plan(command, version, wanted))


async def _require_version(request: Request, command: Command, version: int) -> None:
    """Raises ProblemError where the thread or the version does not exist. While the views cannot say so of the version,
    the fold alone decides.
    """
    found = dependencies(request)
    await found.known.require(command.key)
    try:
        if await _last_version(request, command) >= version:
            return
        await found.known.catch_up(command.key)
        if await _last_version(request, command) >= version:
            return
    except ProblemError as error:
        if error.problem.type in {VIEWS_UNAVAILABLE, VIEWS_BEHIND}:
            return
        raise
    raise ProblemError(accept_plans.no_such_version(version))


async def _last_version(request: Request, command: Command) -> int:
    facts = await dependencies(request).views.plan_facts(command.key, command.event_id(PlanProposed))
    return facts.last_version
