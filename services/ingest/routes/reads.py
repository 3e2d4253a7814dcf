"""Lists of a thread and of a tenant, and what became of a command."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

import asyncpg
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import parse_event_id
from services.ingest.commands.tools import Tools
from services.ingest.http import openapi
from services.ingest.http.answers import (
    ApprovalPage,
    ChildPage,
    CommandRecord,
    InputPage,
    ItemPage,
    PlanPage,
    StepPage,
    ToolCallPage,
    TurnPage,
    UnknownCallPage,
)
from services.ingest.http.problems import BAD_CURSOR, NOT_FOUND, THREAD_NOT_FOUND, VIEWS_BEHIND, Problem, ProblemError
from services.ingest.reads.reads import (
    APPROVALS,
    CHILDREN,
    INPUTS,
    ITEMS,
    PLAN,
    STEPS,
    TOOL_CALLS,
    TURNS,
    UNKNOWN_CALLS,
    List,
)
from services.ingest.routes.parameters import (
    JSON,
    AtLeastQuery,
    Cursor,
    Limit,
    ThreadPath,
    ThreadQuery,
    page_limit,
    reader_of,
    thread_key,
    wait_at_least,
)

router = APIRouter(tags=["reads"])

OF_A_THREAD = (THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *openapi.OF_READS)

More: TypeAlias = Callable[[Tools, asyncpg.Record], Mapping[str, object]]


def _effect(tools: Tools, row: asyncpg.Record) -> Mapping[str, object]:
    """A call that waits was not dispatched yet, so no record says its effect class: the operator's policy does."""
    return {"effect": tools.effect(row["tool"])}


class Listed(NamedTuple):
    path: str
    name: str
    summary: str
    of: List
    page: type[BaseModel]
    description: str = ""
    more: More | None = None
    """What an entry shows beside its row."""


LISTS = (
    Listed(
        "/v1/threads/{thread}/inputs",
        "list_inputs",
        "What was submitted, and which turn and step took it",
        INPUTS,
        InputPage,
        "Inputs that a turn took at its start have no step. `dropped` names the event by which one left the queue "
        "without reaching a model.",
    ),
    Listed(
        "/v1/threads/{thread}/items",
        "list_items",
        "What was said: messages, reasoning, calls, results",
        ITEMS,
        ItemPage,
    ),
    Listed("/v1/threads/{thread}/turns", "list_turns", "The thread's turns", TURNS, TurnPage),
    Listed("/v1/threads/{thread}/steps", "list_steps", "The model calls of the thread's turns", STEPS, StepPage),
    Listed(
        "/v1/threads/{thread}/tool-calls",
        "list_tool_calls",
        "The thread's tool calls, with their results",
        TOOL_CALLS,
        ToolCallPage,
    ),
    Listed(
        "/v1/threads/{thread}/children",
        "list_children",
        "The thread's child threads, in order of their ids",
        CHILDREN,
        ChildPage,
        "`parent_call` or `parent_task` says what of the thread each works for; neither does where a person or a "
        "backend created it. Of forks, `GET /v1/threads/{thread}` names the parent.",
    ),
    Listed(
        "/v1/threads/{thread}/plan",
        "get_plan",
        "The versions of the thread's plan, the newest first",
        PLAN,
        PlanPage,
        "Who proposed and who answered each, when and why, and its graph: of a version that came in force with the "
        "status, the child thread and the result of each task. One is `in_force` at most, and one is `waiting`.",
    ),
    Listed(
        "/v1/approvals",
        "list_approvals",
        "Calls that wait for a person's approval",
        APPROVALS,
        ApprovalPage,
        "Of all threads of the tenant, or of one. Each is answered by `POST …/tool-calls/{call}/decision` with its "
        "`call_hash`, through any instance and by any client; the first answer in the log counts.",
        _effect,
    ),
    Listed(
        "/v1/unknown-calls",
        "list_unknown_calls",
        "Calls of which is not known whether they ran",
        UNKNOWN_CALLS,
        UnknownCallPage,
        "Of all threads of the tenant, or of one. Each is settled by `POST …/tool-calls/{call}/resolution` with its "
        "`attempt`. `again` is possible while `turn_status` is `open`.",
    ),
)


def _of_thread(listed: Listed) -> Callable[..., Awaitable[Response]]:
    async def read(
        request: Request,
        thread: ThreadPath,
        cursor: Cursor = None,
        limit: Limit = None,
        at_least: AtLeastQuery = None,
    ) -> Response:
        return await _page(request, listed, thread, cursor, limit, at_least)

    return read


def _of_tenant(listed: Listed) -> Callable[..., Awaitable[Response]]:
    async def read(
        request: Request,
        thread: ThreadQuery = None,
        cursor: Cursor = None,
        limit: Limit = None,
        at_least: AtLeastQuery = None,
    ) -> Response:
        return await _page(request, listed, thread, cursor, limit, at_least)

    return read


for _listed in LISTS:
    router.add_api_route(
        _listed.path,
        (_of_thread if "{thread}" in _listed.path else _of_tenant)(_listed),
        methods=["GET"],
        name=_listed.name,
        summary=_listed.summary,
        description=_listed.description,
        responses=openapi.answers(_listed.page, (200,), OF_A_THREAD),
    )


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
    await found.known.require_viewed(key)
    parsed = parse_event_id(event_id)
    record = None if parsed is None else await found.reads.command(key, parsed)
    if record is None:
        raise ProblemError(Problem(NOT_FOUND, "The views hold no command with this id in the thread."))
    return Response(record, media_type=JSON)


async def _page(
    request: Request, listed: Listed, thread: str | None, cursor: str | None, limit: int | None, at_least: str | None
) -> Response:
    found, principal = await reader_of(request)
    key = None if thread is None else thread_key(principal.tenant, thread)
    await wait_at_least(found, at_least, key)
    only = None if key is None else key.thread
    page = await found.reads.page(listed.of, principal.tenant, only, cursor, page_limit(found, limit))
    if key is not None and not page.rows:
        await found.known.require_viewed(key)
    more = listed.more
    return Response(page.to_json(None if more is None else lambda row: more(found.tools, row)), media_type=JSON)
