"""Lists below a thread, and what became of a command."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import parse_event_id
from services.ingest import openapi
from services.ingest.answers import CommandRecord, ItemPage, StepPage, ToolCallPage, TurnPage
from services.ingest.problems import BAD_CURSOR, NOT_FOUND, THREAD_NOT_FOUND, VIEWS_BEHIND, Problem, ProblemError
from services.ingest.reads import ITEMS, STEPS, TOOL_CALLS, TURNS, List
from services.ingest.routes.parameters import (
    JSON,
    AtLeastQuery,
    Cursor,
    Limit,
    ThreadPath,
    page_limit,
    reader_of,
    thread_key,
    wait_at_least,
)

router = APIRouter(tags=["reads"])

OF_A_THREAD = (THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *openapi.OF_READS)


@router.get(
    "/v1/threads/{thread}/items",
    summary="What was said: messages, reasoning, calls, results",
    responses=openapi.answers(ItemPage, (200,), OF_A_THREAD),
)
async def list_items(
    request: Request,
    thread: ThreadPath,
    cursor: Cursor = None,
    limit: Limit = None,
    at_least: AtLeastQuery = None,
) -> Response:
    return await _page(request, ITEMS, thread, cursor, limit, at_least)


@router.get(
    "/v1/threads/{thread}/turns",
    summary="The thread's turns",
    responses=openapi.answers(TurnPage, (200,), OF_A_THREAD),
)
async def list_turns(
    request: Request,
    thread: ThreadPath,
    cursor: Cursor = None,
    limit: Limit = None,
    at_least: AtLeastQuery = None,
) -> Response:
    return await _page(request, TURNS, thread, cursor, limit, at_least)


@router.get(
    "/v1/threads/{thread}/steps",
    summary="The model calls of the thread's turns",
    responses=openapi.answers(StepPage, (200,), OF_A_THREAD),
)
async def list_steps(
    request: Request,
    thread: ThreadPath,
    cursor: Cursor = None,
    limit: Limit = None,
    at_least: AtLeastQuery = None,
) -> Response:
    return await _page(request, STEPS, thread, cursor, limit, at_least)


@router.get(
    "/v1/threads/{thread}/tool-calls",
    summary="The thread's tool calls, with their results",
    responses=openapi.answers(ToolCallPage, (200,), OF_A_THREAD),
)
async def list_tool_calls(
    request: Request,
    thread: ThreadPath,
    cursor: Cursor = None,
    limit: Limit = None,
    at_least: AtLeastQuery = None,
) -> Response:
    return await _page(request, TOOL_CALLS, thread, cursor, limit, at_least)


@router.get(
    "/v1/threads/{thread}/commands/{event_id}",
    summary="What became of a command",
    description="By the id of its event, as the command's answer names it. 404 while the views do not hold it yet.",
    responses=openapi.answers(CommandRecord, (200,), (*OF_A_THREAD, NOT_FOUND)),
)
async def get_command(request: Request, thread: ThreadPath, event_id: str, at_least: AtLeastQuery = None) -> Response:
    found, principal = await reader_of(request)
    key = thread_key(principal.tenant, thread)
    await wait_at_least(found, at_least, key)
    await found.known.require(key)
    parsed = parse_event_id(event_id)
    record = None if parsed is None else await found.reads.command(key, parsed)
    if record is None:
        raise ProblemError(Problem(NOT_FOUND, "The views hold no command with this id in the thread."))
    return Response(record, media_type=JSON)


async def _page(
    request: Request, of: List, thread: str, cursor: str | None, limit: int | None, at_least: str | None
) -> Response:
    found, principal = await reader_of(request)
    key = thread_key(principal.tenant, thread)
    await wait_at_least(found, at_least, key)
    page = await found.reads.page(of, key, cursor, page_limit(found, limit))
    if not page.rows:
        await found.known.require(key)
    return Response(page.to_json(), media_type=JSON)
