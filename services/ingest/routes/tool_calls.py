"""Tool calls: decide on one that waits for approval, post a client tool's result, settle one that is unknown.

All of them answer once they were folded: the first in the log counts, the others learn that it was.
"""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.ingest.commands.accepting import calls as accept_calls
from services.ingest.commands.accepting.accept import Accepted, CallFacts, Command
from services.ingest.dependencies import dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.problems import (
    ARGUMENTS_DO_NOT_FIT,
    CALL_NOT_OPEN,
    CATALOG_NOT_LOADED,
    NOT_FOUND,
    TOOL_NOT_IN_CATALOG,
    VIEWS_BEHIND,
    VIEWS_UNAVAILABLE,
    ProblemError,
)
from services.ingest.http.requests import DecideCall, PostResult, ResolveCall
from services.ingest.routes.parameters import call_of, command_of, read_body, run
from services.ingest.routes.threads import TO_A_THREAD

router = APIRouter(tags=["tool calls"])


WHO_DECIDED = (
    "A later answer is told what was decided: 409 with `decided` {by, decision, at, reason}, with `call` as it is now, "
    "and with `recorded` {outcome, at, result} once the call is settled."
)


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/decision",
    summary="Approve or deny a tool call",
    description="Bound to the hash of the call that was looked at. The first answer in the log counts, whoever gives "
    f"it. {WHO_DECIDED} Edited `args` have to fit the tool's schema. Needs the scope `tools:decide`.",
    responses=openapi.answers(
        CommandAnswer,
        (200, 202),
        (*TO_A_THREAD, NOT_FOUND, TOOL_NOT_IN_CATALOG, ARGUMENTS_DO_NOT_FIT, CATALOG_NOT_LOADED),
    ),
    openapi_extra=openapi.command(DecideCall),
)
async def decide_call(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/decision", "tools:decide")
    wanted = await read_body(request, DecideCall)
    found = dependencies(request)
    tools = found.tools
    if wanted.args is not None:
        facts = await _facts(request, command, call)
    else:
        facts = None
        await _require_call(request, command, call)
    accepted = accept_calls.decide_call(command, call, wanted, facts, found.limits, tools.problem_of_edit)
    refusal = None if wanted.tool is None else tools.problem_of_name(wanted.tool)
    if isinstance(accepted, Accepted) and refusal is not None:
        accepted = replace(accepted, refusal=refusal)
    return await run(request, accepted)


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/result",
    summary="Post the result of a client tool's call",
    description="For tools of the pool `client`, which run in your backend. The first result counts: the same one "
    "again is answered alike, another one is told what was recorded: 409 with `recorded` {outcome, at, result}.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND, CALL_NOT_OPEN)),
    openapi_extra=openapi.command(PostResult),
)
async def post_result(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/result")
    wanted = await read_body(request, PostResult)
    found = dependencies(request)
    # The claim in force, not one that a later dispatch has taken the place of: whoever follows the thread may have seen
    # a dispatch before the views hold it.
    await found.known.require(command.key)
    await found.known.catch_up(command.key)
    facts = await found.views.call_facts(command.key, call)
    return await run(request, accept_calls.post_result(command, call, wanted, facts, found.limits))


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/resolution",
    summary="Settle a call of which is not known whether it ran",
    description="Say that it succeeded or failed, and with which result; have it run `again`, while its turn is open; "
    "or give it up (`abandoned`). Bound to the attempt that was looked at. "
    f"{WHO_DECIDED} Needs the scope `tools:decide`.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND)),
    openapi_extra=openapi.command(ResolveCall),
)
async def resolve_call(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/resolution", "tools:decide")
    wanted = await read_body(request, ResolveCall)
    await _require_call(request, command, call)
    return await run(request, accept_calls.resolve_call(command, call, wanted, dependencies(request).limits))


async def _require_call(request: Request, command: Command, call: str) -> None:
    """Raises ProblemError where the thread or the call does not exist. While the views cannot say so of the call, the
    fold alone decides.
    """
    await dependencies(request).known.require(command.key)
    try:
        facts = await _facts(request, command, call)
    except ProblemError as error:
        if error.problem.type in {VIEWS_UNAVAILABLE, VIEWS_BEHIND}:
            return
        raise
    if facts is None:
        raise ProblemError(accept_calls.no_such_call(call))


async def _facts(request: Request, command: Command, call: str) -> CallFacts | None:
    """What the views say of the call; where they do not hold it, they may lag behind, so they are waited for once."""
    found = dependencies(request)
    await found.known.require(command.key)
    facts = await found.views.call_facts(command.key, call)
    if facts is not None:
        return facts
    await found.known.catch_up(command.key)
    return await found.views.call_facts(command.key, call)
