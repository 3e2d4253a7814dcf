"""Threads: create, describe, configure, archive, close, read, list."""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from schemas.canonical import unstorable
from services.chassis.clock import draw_id
from services.ingest.commands.accepting import accept
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer, Status, ThreadAnswer, ThreadPage
from services.ingest.http.problems import (
    ARTIFACT_MISSING,
    ARTIFACTS_UNAVAILABLE,
    BAD_CURSOR,
    IDEMPOTENCY_CONFLICT,
    INVALID_REQUEST,
    LOG_UNAVAILABLE,
    NOT_APPLIED,
    THREAD_NOT_FOUND,
    TOO_MANY_APPENDS,
    VIEWS_BEHIND,
    Problem,
    ProblemError,
    no_such_thread,
)
from services.ingest.http.requests import CloseThread, CreateThread, PatchThread
from services.ingest.reads.reads import ThreadFilter
from services.ingest.routes.parameters import (
    JSON,
    AtLeastQuery,
    Cursor,
    Limit,
    ThreadPath,
    command_of,
    idempotency_key,
    moment_of,
    page_limit,
    read_body,
    reader_of,
    run,
    sizes_of_named,
    thread_key,
    wait_at_least,
)

router = APIRouter(tags=["threads"])

OF_COMMANDS = (
    *openapi.OF_BODIES,
    NOT_APPLIED,
    IDEMPOTENCY_CONFLICT,
    TOO_MANY_APPENDS,
    LOG_UNAVAILABLE,
    *openapi.OF_READS,
)
NAMING_ARTIFACTS = (ARTIFACT_MISSING, ARTIFACTS_UNAVAILABLE)
TO_A_THREAD = (THREAD_NOT_FOUND, VIEWS_BEHIND, *OF_COMMANDS)

Labels = Annotated[list[str] | None, Query(description="`name:value`; threads that have all of them.", max_length=16)]


@router.post(
    "/v1/threads",
    summary="Create a thread, with its first input if there is one",
    responses=openapi.answers(CommandAnswer, (200, 202), (*OF_COMMANDS, *NAMING_ARTIFACTS)),
    openapi_extra=openapi.command(CreateThread),
)
async def create_thread(request: Request) -> Response:
    principal = await authorized(request, "threads:write")
    sent = idempotency_key(request)
    command = accept.create_command(principal, sent or draw_id(), keyed=sent is not None)
    wanted = await read_body(request, CreateThread)
    sizes = await sizes_of_named(request, principal.tenant, wanted.input, wanted.config)
    return await run(request, accept.create_thread(command, wanted, dependencies(request).limits, sizes))


@router.patch(
    "/v1/threads/{thread}",
    summary="Describe, configure or archive a thread",
    description="The configuration takes a merge patch (RFC 7396); it is in force from the next turn.",
    responses=openapi.answers(CommandAnswer, (200, 202), (*TO_A_THREAD, *NAMING_ARTIFACTS)),
    openapi_extra=openapi.command(PatchThread),
)
async def patch_thread(request: Request) -> Response:
    command = await command_of(request, "patch")
    wanted = await read_body(request, PatchThread)
    await sizes_of_named(request, command.key.tenant, config=wanted.config)
    return await run(request, accept.patch_thread(command, wanted, dependencies(request).limits))


@router.post(
    "/v1/threads/{thread}/close",
    summary="Close a thread for good",
    description="No new input or turn; the open turn is cancelled, the queue discarded.",
    responses=openapi.answers(CommandAnswer, (200, 202), TO_A_THREAD),
    openapi_extra=openapi.command(CloseThread, required=False),
)
async def close_thread(request: Request) -> Response:
    command = await command_of(request, "close")
    wanted = await read_body(request, CloseThread, optional=True)
    return await run(request, accept.close_thread(command, wanted))


@router.get(
    "/v1/threads/{thread}",
    summary="Read a thread",
    responses=openapi.answers(ThreadAnswer, (200,), (THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *openapi.OF_READS)),
)
async def get_thread(request: Request, thread: ThreadPath, at_least: AtLeastQuery = None) -> Response:
    found, principal = await reader_of(request)
    key = thread_key(principal.tenant, thread)
    await wait_at_least(found, at_least, key)
    if key.ephemeral:
        return Response(await found.views.thread(key), media_type=JSON)
    row = await found.reads.thread(key)
    if row is None:
        # Not there yet, or never there: the view is waited for, then asked again.
        await found.known.look_up(key)
        row = await found.reads.thread(key)
    if row is None:
        raise ProblemError(no_such_thread())
    return Response(row, media_type=JSON)


@router.get(
    "/v1/threads",
    summary="List threads, the newest first",
    responses=openapi.answers(ThreadPage, (200,), (BAD_CURSOR, INVALID_REQUEST, VIEWS_BEHIND, *openapi.OF_READS)),
)
async def list_threads(
    request: Request,
    cursor: Cursor = None,
    limit: Limit = None,
    archived: Annotated[bool | None, Query()] = None,
    status: Annotated[Status | None, Query()] = None,
    updated_after: Annotated[str | None, Query(description="RFC 3339, with a zone.", max_length=60)] = None,
    label: Labels = None,
    at_least: AtLeastQuery = None,
) -> Response:
    found, principal = await reader_of(request)
    chosen = ThreadFilter(archived, status, moment_of("updated_after", updated_after), _labels(label))
    await wait_at_least(found, at_least, None)
    page = await found.reads.threads(principal.tenant, chosen, cursor, page_limit(found, limit))
    return Response(page.to_json(), media_type=JSON)


def _labels(texts: list[str] | None) -> dict[str, str] | None:
    if texts is None:
        return None
    labels = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not name or not colon or unstorable(text) is not None:
            raise _invalid("label", "name:value")
        labels[name] = value
    return labels


def _invalid(name: str, expected: str) -> ProblemError:
    errors: JsonValue = [{"place": f"query.{name}", "detail": f"must be {expected}"}]
    return ProblemError(Problem(INVALID_REQUEST, f"The parameter {name} must be {expected}.", {"errors": errors}))
