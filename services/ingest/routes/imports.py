"""Imports of recorded sessions: asked for with files that were uploaded as artifacts, worked on beside the requests."""

# ruff: noqa: FAST003 - parameters are read by hand, as those of commands are

import hashlib
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from schemas.canonical import canonical_json
from schemas.ids import derive, parse_event_id
from services.chassis.clock import draw_id
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import ImportAnswer, ImportFilePage
from services.ingest.http.problems import (
    IDEMPOTENCY_CONFLICT,
    NOT_FOUND,
    TOO_LARGE,
    Problem,
    ProblemError,
)
from services.ingest.http.requests import CreateImport
from services.ingest.imports.jobs import WantedFile
from services.ingest.routes.parameters import JSON, Limit, idempotency_key, page_limit, read_body

router = APIRouter(tags=["imports"])


@router.post(
    "/v1/imports",
    status_code=202,
    summary="Import recorded sessions",
    description="Of Claude Code or Codex. The files are named by the hashes under which they were uploaded as "
    "artifacts. What they hold is added to threads of their own, one for each session; importing them again, or longer "
    "snapshots of them, adds what is new.",
    responses=openapi.answers(ImportAnswer, (202,), (*openapi.OF_BODIES, IDEMPOTENCY_CONFLICT, *openapi.OF_READS)),
    openapi_extra=openapi.command(CreateImport, waits=False),
)
async def create_import(request: Request) -> Response:
    principal = await authorized(request, "threads:write")
    sent = idempotency_key(request)
    wanted = await read_body(request, CreateImport)
    found = dependencies(request)
    if len(wanted.files) > found.settings.import_files_max:
        detail = f"An import may have {found.settings.import_files_max} files; make several."
        raise ProblemError(Problem(TOO_LARGE, detail))
    import_id = UUID(derive("import", principal.tenant, principal.subject, sent if sent is not None else draw_id()))
    files = [WantedFile(file.path, file.sha256, file.size, file.companion) for file in wanted.files]
    request_sha256 = hashlib.sha256(canonical_json(wanted.model_dump(mode="json"))).hexdigest()
    if not await found.imports.create(import_id, principal, wanted.tool, request_sha256, files):
        raise ProblemError(Problem(IDEMPOTENCY_CONFLICT, "Another import was asked for with this key."))
    return Response(await _import(request, principal.tenant, import_id), 202, media_type=JSON)


@router.get(
    "/v1/imports/{import}",
    summary="See how far an import is",
    responses=openapi.answers(ImportAnswer, (200,), (NOT_FOUND, *openapi.OF_READS)),
)
async def get_import(request: Request) -> Response:
    principal = await authorized(request, "threads:read")
    return Response(await _import(request, principal.tenant, _id_of(request)), media_type=JSON)


@router.get(
    "/v1/imports/{import}/files",
    summary="Read what was found in an import's files",
    description="In the order in which they were named, those that are done. `after` is the number of the last one.",
    responses=openapi.answers(ImportFilePage, (200,), (NOT_FOUND, *openapi.OF_READS)),
)
async def list_import_files(
    request: Request, after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1, limit: Limit = None
) -> Response:
    principal = await authorized(request, "threads:read")
    import_id = _id_of(request)
    await _import(request, principal.tenant, import_id)
    found = dependencies(request)
    page = await found.imports.files(principal.tenant, import_id, after, page_limit(found, limit))
    return Response(page, media_type=JSON)


def _id_of(request: Request) -> UUID:
    text = parse_event_id(request.path_params["import"])
    if text is None:
        raise ProblemError(no_such_import())
    return UUID(text)


async def _import(request: Request, tenant: str, import_id: UUID) -> bytes:
    found = await dependencies(request).imports.read(tenant, import_id)
    if found is None:
        raise ProblemError(no_such_import())
    return found


def no_such_import() -> Problem:
    return Problem(NOT_FOUND, "There is no such import.")
