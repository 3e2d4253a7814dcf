"""Forking, rewinding and compacting a thread."""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.chassis.clock import draw_id
from services.ingest.commands.accepting import lineage as accept_lineage
from services.ingest.commands.forks import ForkAt
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer, ForkAnswer
from services.ingest.http.problems import FORK_POINT, NOT_FORKABLE, STATE_OUT_OF_REACH
from services.ingest.http.requests import CompactThread, ForkThread, RewindThread
from services.ingest.routes.parameters import (
    command_of,
    idempotency_key,
    read_body,
    run,
    sizes_of_named,
    thread_key,
)
from services.ingest.routes.threads import NAMING_ARTIFACTS, TO_A_THREAD

router = APIRouter(tags=["threads"])

FORKING = """
A thread that begins with what this one had come to at a record or the end of a turn, by reference: nothing is copied,
and usage and effects of what it inherits stay this thread's. It takes the configuration that was in force there, and
neither queue, plan nor approvals. A fork of an open turn has what is settled of it; `fork` in the answer says at which
seq it was made and why. The thread may be closed or archived, and may be a fork itself.
"""
REWINDING = """
Turns after `to_turn` leave the context. They stay in history, and can be forked from; the next turn goes on counting
from the last that there was. Where a turn is open: 409.
"""
COMPACTING = """
A summary by the thread's model takes the place of what was said so far, before anything else is asked of it; history
stays whole. A second request changes nothing while one stands. Where the model gives no summary in a few tries, the
thread goes on as it was, with `context.compaction_failed` among its events. Where a step is open: 409.
"""


@router.post(
    "/v1/threads/{thread}/fork",
    summary="Fork a thread",
    description=FORKING,
    responses=openapi.answers(
        ForkAnswer, (200, 202), (*TO_A_THREAD, *NAMING_ARTIFACTS, NOT_FORKABLE, FORK_POINT, STATE_OUT_OF_REACH)
    ),
    openapi_extra=openapi.command(ForkThread, required=False),
)
async def fork_thread(request: Request) -> Response:
    principal = await authorized(request, "threads:write")
    sent = idempotency_key(request)
    parent = thread_key(principal.tenant, request.path_params["thread"])
    command = accept_lineage.fork_command(principal, parent, sent or draw_id(), keyed=sent is not None)
    wanted = await read_body(request, ForkThread, optional=True)
    at = ForkAt() if wanted.at is None else ForkAt(wanted.at.seq, wanted.at.turn)
    found = dependencies(request)
    point = await found.forks.point(parent, command, at)
    sizes = await sizes_of_named(request, principal.tenant, wanted.input, wanted.config)
    return await run(request, accept_lineage.fork_thread(command, wanted, point, found.limits, sizes))


@router.post(
    "/v1/threads/{thread}/rewind",
    summary="Go back to an earlier turn",
    description=REWINDING,
    responses=openapi.answers(CommandAnswer, (200, 202), TO_A_THREAD),
    openapi_extra=openapi.command(RewindThread),
)
async def rewind_thread(request: Request) -> Response:
    command = await command_of(request, "rewind")
    wanted = await read_body(request, RewindThread)
    return await run(request, accept_lineage.rewind_thread(command, wanted))


@router.post(
    "/v1/threads/{thread}/compact",
    summary="Ask for a summary in place of the conversation so far",
    description=COMPACTING,
    responses=openapi.answers(CommandAnswer, (200, 202), TO_A_THREAD),
    openapi_extra=openapi.command(CompactThread, required=False),
)
async def compact_thread(request: Request) -> Response:
    command = await command_of(request, "compact")
    await read_body(request, CompactThread, optional=True)
    return await run(request, accept_lineage.compact_thread(command))
