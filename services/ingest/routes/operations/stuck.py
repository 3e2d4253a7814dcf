"""For operators: what stands still, and what cannot be read, of all tenants."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from schemas.errors import Fault
from schemas.ids import NAME_PATTERN
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.problems import BAD_CURSOR
from services.ingest.operations.dead_letters import PARTITION_MAX, DeadLetterFilter, DeadLetterPage, as_text
from services.ingest.operations.stuck import Stuck
from services.ingest.routes.parameters import JSON, Cursor, Limit, moment_of, page_limit

TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"

router = APIRouter(tags=["ops"])


@router.get(
    "/v1/ops/stuck",
    summary="Threads and partitions that make no progress though they should",
    description="Of all tenants, with the reason and what to do. Needs the scope `ops`.",
    responses=openapi.answers(Stuck, (200,), ()),
)
async def list_stuck(request: Request) -> Response:
    await authorized(request, "ops")
    found = await dependencies(request).ops.stuck()
    return Response(found.model_dump_json(), media_type=JSON)


@router.get(
    "/v1/ops/dead-letters",
    summary="Records that could not be decoded or stored",
    description="Of all tenants, the newest first; on the topic `thread-events-dlq` too. Needs the scope `ops`.",
    responses=openapi.answers(DeadLetterPage, (200,), (BAD_CURSOR, *openapi.OF_READS)),
)
async def list_dead_letters(
    request: Request,
    cursor: Cursor = None,
    limit: Limit = None,
    tenant: Annotated[str | None, Query(description="Only of this tenant's keys.", pattern=NAME_PATTERN)] = None,
    topic: Annotated[str | None, Query(description="Only of this topic.", pattern=TOPIC_PATTERN)] = None,
    partition: Annotated[int | None, Query(description="Only of this partition.", ge=0, le=PARTITION_MAX)] = None,
    fault: Annotated[Fault | None, Query(description="Only of this class.")] = None,
    since: Annotated[
        str | None, Query(description="Only from this time of the broker's on. RFC 3339, with a zone.", max_length=60)
    ] = None,
) -> Response:
    await authorized(request, "ops")
    found = dependencies(request)
    chosen = DeadLetterFilter(tenant, topic, partition, fault, moment_of("since", since))
    page = await found.dead_letters.page(chosen, cursor, page_limit(found, limit))
    return Response(page.to_json(as_text), media_type=JSON)
