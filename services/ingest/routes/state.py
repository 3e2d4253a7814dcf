"""GET /v1/threads/{id}/state: what the thread had come to at a seq."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from services.ingest.http import openapi
from services.ingest.http.answers import StateAnswer
from services.ingest.http.problems import (
    BAD_CURSOR,
    LOG_UNAVAILABLE,
    STATE_OUT_OF_REACH,
    THREAD_NOT_FOUND,
    VIEWS_BEHIND,
    ProblemError,
)
from services.ingest.reads.state_at import beyond, to_json
from services.ingest.routes.parameters import JSON, AtLeastQuery, ThreadPath, reader_of, thread_key, wait_at_least
from services.ingest.streams.history import SEQ_MAX

router = APIRouter(tags=["reads"])

DESCRIPTION = """
The folded control state after the record at `at`, and the items that a model is shown of the thread by then: the same
that a fold of the log gives. Without `at`: as of now. An earlier state is folded when it is asked for, within limits.
"""
PROBLEMS = (THREAD_NOT_FOUND, BAD_CURSOR, STATE_OUT_OF_REACH, VIEWS_BEHIND, LOG_UNAVAILABLE, *openapi.OF_READS)

At = Annotated[int | None, Query(description="A seq of the thread; 0 is before its first record.", ge=0, le=SEQ_MAX)]


@router.get(
    "/v1/threads/{thread}/state",
    summary="Read what a thread had come to at one of its records",
    description=DESCRIPTION,
    responses=openapi.answers(StateAnswer, (200,), PROBLEMS),
)
async def get_state(request: Request, thread: ThreadPath, at: At = None, at_least: AtLeastQuery = None) -> Response:
    found, principal = await reader_of(request)
    key = thread_key(principal.tenant, thread)
    await wait_at_least(found, at_least, key)
    await found.known.require_viewed(key)
    state = await found.states.state(key, at)
    if state is None:
        # In the log perhaps, and not in the views yet.
        await found.known.catch_up(key)
        state = await found.states.state(key, at)
    if state is None:
        raise ProblemError(beyond(key, at or 0))
    return Response(to_json(key, state), media_type=JSON)
