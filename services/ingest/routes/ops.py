"""For operators: what stands still, of all tenants."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.ingest import openapi
from services.ingest.dependencies import authorized, dependencies
from services.ingest.ops import Stuck
from services.ingest.routes.parameters import JSON

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
