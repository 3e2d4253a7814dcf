"""GET /v1/usage: what a tenant has used, by day and model."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from services.ingest.dependencies import Dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import UsagePage
from services.ingest.http.problems import BAD_CURSOR, THREAD_NOT_FOUND, VIEWS_BEHIND
from services.ingest.reads.reads import UsageFilter
from services.ingest.routes.parameters import (
    JSON,
    UNIT_MS,
    AtLeastQuery,
    Cursor,
    Limit,
    ThreadQuery,
    moment_of,
    page_limit,
    reader_of,
    require_range,
    thread_key,
    wait_at_least,
)

DAYS_DEFAULT: Final = 30

router = APIRouter(tags=["reads"])


@router.get(
    "/v1/usage",
    summary="What was used, by day and model",
    description="Tokens as the providers counted them, of each response once: where a thread is a copy of another, the "
    "thread that recorded the response first is the one it counts for. Responses that lost a race count too: they were "
    "paid for. Days are those of UTC. After a rebuild of the views the numbers are the same.",
    responses=openapi.answers(UsagePage, (200,), (THREAD_NOT_FOUND, BAD_CURSOR, VIEWS_BEHIND, *openapi.OF_READS)),
)
async def list_usage(
    request: Request,
    thread: ThreadQuery = None,
    begin: Annotated[
        str | None,
        Query(alias="from", description="RFC 3339, with a zone. Without it 30 days before `to`.", max_length=60),
    ] = None,
    end: Annotated[
        str | None, Query(alias="to", description="RFC 3339, with a zone. Without it now.", max_length=60)
    ] = None,
    cursor: Cursor = None,
    limit: Limit = None,
    at_least: AtLeastQuery = None,
) -> Response:
    found, principal = await reader_of(request)
    key = None if thread is None else thread_key(principal.tenant, thread)
    from_ms, to_ms = _range(found, moment_of("from", begin), moment_of("to", end))
    await wait_at_least(found, at_least, key)
    chosen = UsageFilter(from_ms, to_ms, None if key is None else key.thread)
    page = await found.reads.usage(principal.tenant, chosen, cursor, page_limit(found, limit))
    if key is not None and not page.rows:
        await found.known.require_viewed(key)
    return Response(page.to_json(), media_type=JSON)


def _range(found: Dependencies, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
    """Raises ProblemError."""
    if to_ms is None:
        to_ms = found.clock.now_ms()
    if from_ms is None:
        from_ms = max(0, to_ms - DAYS_DEFAULT * UNIT_MS["days"])
    require_range(from_ms, to_ms, found.settings.ingest_usage_days_max, "days")
    return from_ms, to_ms
