"""Tool calls: decide on one that waits for approval, post a client tool's result, settle one that is unknown.

All of them answer once they were folded: the first in the log counts, the others learn that it was.
"""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.ingest import accept, openapi
from services.ingest.accept import CallFacts, Command
from services.ingest.answers import CommandAnswer
from services.ingest.dependencies import dependencies
from services.ingest.problems import CALL_NOT_OPEN, NOT_FOUND
from services.ingest.requests import DecideCall, PostResult, ResolveCall
from services.ingest.routes.parameters import call_of, command_of, read_body, run
from services.ingest.routes.threads import TO_A_THREAD

router = APIRouter(tags=["tool calls"])


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/decision",
    summary="Approve or deny a tool call",
    description="Bound to the hash of the call that was looked at. Needs the scope `tools:decide`.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND)),
    openapi_extra=openapi.command(DecideCall),
)
async def decide_call(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/decision", "tools:decide")
    wanted = await read_body(request, DecideCall)
    facts = await _facts(request, command, call) if wanted.args is not None else None
    return await run(request, accept.decide_call(command, call, wanted, facts))


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/result",
    summary="Post the result of a client tool's call",
    description="For tools of the pool `client`, which run in your backend. The first result counts.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND, CALL_NOT_OPEN)),
    openapi_extra=openapi.command(PostResult),
)
async def post_result(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/result")
    wanted = await read_body(request, PostResult)
    found = dependencies(request)
    facts = await _facts(request, command, call, accept.is_for_clients)
    return await run(request, accept.post_result(command, call, wanted, facts, found.limits))


@router.post(
    "/v1/threads/{thread}/tool-calls/{call}/resolution",
    summary="Settle a call of which is not known whether it ran",
    description="Say that it succeeded or failed, and with which result; have it run `again`; or give it up "
    "(`abandoned`). Needs the scope `tools:decide`.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, NOT_FOUND)),
    openapi_extra=openapi.command(ResolveCall),
)
async def resolve_call(request: Request) -> Response:
    call = call_of(request)
    command = await command_of(request, f"tool-calls/{call}/resolution", "tools:decide")
    wanted = await read_body(request, ResolveCall)
    found = dependencies(request)
    facts = await _facts(request, command, call)
    return await run(request, accept.resolve_call(command, call, wanted, facts, found.limits))


async def _facts(
    request: Request,
    command: Command,
    call: str,
    are_enough: Callable[[CallFacts | None], bool] = lambda facts: facts is not None,
) -> CallFacts | None:
    """What the views say of the call; where that is not enough, they may lag behind, so they are waited for once."""
    found = dependencies(request)
    await found.known.require(command.key)
    facts = await found.views.call_facts(command.key, call)
    if are_enough(facts):
        return facts
    await found.known.catch_up(command.key)
    return await found.views.call_facts(command.key, call)
