"""For operators: what happened, per tenant and minute."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import NAME_PATTERN
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.problems import BAD_CURSOR
from services.ingest.operations.windows import WindowFilter, WindowPage
from services.ingest.routes.parameters import JSON, UNIT_MS, Cursor, Limit, moment_of, page_limit, require_range

DAY_MINUTES = 1_440

router = APIRouter(tags=["ops"])


@router.get(
    "/v1/ops/windows",
    summary="What happened, per tenant and minute",
    description="Of all tenants, in event time: inputs, turns, failures, tool calls, tokens, what waits and what is "
    "unknown, durations. Counted a few seconds after it happened; what comes late is added to its minute. Needs the "
    "scope `ops`.",
    responses=openapi.answers(WindowPage, (200,), (BAD_CURSOR, *openapi.OF_READS)),
)
async def list_windows(
    request: Request,
    cursor: Cursor = None,
    limit: Limit = None,
    begin: Annotated[
        str | None,
        Query(alias="from", description="RFC 3339, with a zone. Without it an hour before `to`.", max_length=60),
    ] = None,
    end: Annotated[
        str | None, Query(alias="to", description="RFC 3339, with a zone. Without it now.", max_length=60)
    ] = None,
    tenant: Annotated[str | None, Query(description="Only of this tenant.", pattern=NAME_PATTERN)] = None,
    step_minutes: Annotated[
        int, Query(description="Minutes that are added up to one entry.", ge=1, le=DAY_MINUTES)
    ] = 1,
) -> Response:
    await authorized(request, "ops")
    found = dependencies(request)
    to_ms = moment_of("to", end)
    if to_ms is None:
        to_ms = found.clock.now_ms()
    from_ms = moment_of("from", begin)
    if from_ms is None:
        from_ms = to_ms - UNIT_MS["hours"]
    require_range(from_ms, to_ms, found.settings.ops_windows_hours_max, "hours")
    chosen = WindowFilter(from_ms, to_ms, step_minutes, tenant)
    return Response(await found.windows.page(chosen, cursor, page_limit(found, limit)), media_type=JSON)
