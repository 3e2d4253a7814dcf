"""Artifacts: bytes too large for an event, by their sha256; put before an input names them, and read in ranges."""

# ruff: noqa: FAST003 - the hash is read by hand, as parameters of commands are

import re
from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from services.chassis.artifacts.store import (
    UNTYPED,
    ArtifactInfo,
    ArtifactMismatchError,
    ArtifactMissingError,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
)
from services.ingest.dependencies import authorized, dependencies
from services.ingest.files.ranges import ByteRange, Unsatisfiable, range_of
from services.ingest.files.transfers import Download
from services.ingest.http import openapi
from services.ingest.http.answers import ArtifactAnswer
from services.ingest.http.auth import Principal
from services.ingest.http.problems import (
    ARTIFACT_MISMATCH,
    ARTIFACT_NOT_FOUND,
    ARTIFACTS_UNAVAILABLE,
    INVALID_REQUEST,
    MALFORMED_BODY,
    RANGE_NOT_SATISFIABLE,
    TOO_LARGE,
    TOO_MANY_TRANSFERS,
    Problem,
    ProblemError,
)
from services.ingest.routes.parameters import HASH, JSON, store_unavailable

router = APIRouter(tags=["artifacts"])

_MEDIA_TYPE = re.compile(r"[!-~][ -~]{0,199}", re.ASCII)
HEADERS = {
    "accept-ranges": "bytes",
    "cache-control": "private, max-age=31536000, immutable",
    # What somebody has uploaded is never shown as a page of this origin.
    "content-disposition": "attachment",
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}
BINARY: dict[str, Any] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_OF_READS = (ARTIFACT_NOT_FOUND, RANGE_NOT_SATISFIABLE, INVALID_REQUEST, ARTIFACTS_UNAVAILABLE, TOO_MANY_TRANSFERS)
_CONDITIONS = [
    {
        "name": name,
        "in": "header",
        "schema": {"type": "string"},
        "description": description,
    }
    for name, description in (
        ("Range", "One range of bytes, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-512` (RFC 9110)."),
        ("If-None-Match", "An `ETag`: 304 where it is still that one, which it always is."),
    )
]


@router.put(
    "/v1/artifacts/{sha256}",
    summary="Upload an artifact",
    description="The body is streamed, hashed and stored whole or not at all; putting it again changes nothing. The "
    "`Content-Type` of the first upload is kept. What nothing names is collected after a while: name it soon, "
    "or put it again.",
    responses=openapi.answers(
        ArtifactAnswer,
        (200, 201),
        (ARTIFACT_MISMATCH, TOO_LARGE, MALFORMED_BODY, INVALID_REQUEST, TOO_MANY_TRANSFERS, ARTIFACTS_UNAVAILABLE),
    ),
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
async def put_artifact(request: Request) -> Response:
    principal = await authorized(request, "artifacts:write")
    sha256 = hash_of(request)
    media_type = request.headers.get("content-type", UNTYPED)
    if _MEDIA_TYPE.fullmatch(media_type) is None:
        raise ProblemError(_invalid("header.content-type", "must be 1 to 200 visible ASCII characters"))
    found = dependencies(request)
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared) > found.settings.artifact_bytes_max:
        raise ProblemError(Problem(TOO_LARGE, f"An artifact may have {found.settings.artifact_bytes_max} bytes."))
    with found.transfers.place(principal.tenant):
        try:
            stored = await found.artifacts.put(principal.tenant, sha256, found.transfers.chunks(request), media_type)
            info = await found.artifacts.head(principal.tenant, sha256) or ArtifactInfo(stored.size, media_type)
        except ArtifactMismatchError as error:
            raise ProblemError(Problem(ARTIFACT_MISMATCH, f"{error}.")) from None
        except ArtifactTooLargeError as error:
            raise ProblemError(Problem(TOO_LARGE, f"{error}.")) from None
        except ArtifactsUnavailableError as error:
            raise ProblemError(store_unavailable(error)) from error
    body = {"sha256": sha256, "size": info.size, "media_type": info.media_type}
    return Response(orjson.dumps(body), 200 if stored.was_there else 201, media_type=JSON)


@router.get(
    "/v1/artifacts/{sha256}",
    response_class=Response,
    summary="Read an artifact, or a range of it",
    responses=openapi.answers(None, (200, 206, 304), _OF_READS, content=BINARY),
    openapi_extra={"parameters": _CONDITIONS},
)
async def get_artifact(request: Request) -> Response:
    principal, sha256, info = await _found(request)
    etag = f'"{sha256}"'
    headers = _headers(sha256, info)
    known = request.headers.get("if-none-match", "")
    if etag in known or known.strip() == "*":
        del headers["content-length"]
        return Response(None, 304, headers)
    wanted = range_of(request.headers.get("range"), request.headers.get("if-range"), etag, info.size)
    if isinstance(wanted, Unsatisfiable):
        response = Problem(RANGE_NOT_SATISFIABLE, f"The artifact has {info.size} bytes.").response()
        response.headers["content-range"] = wanted.content_range()
        return response
    status, part = (200, ByteRange(0, info.size)) if wanted is None else (206, wanted)
    headers["content-length"] = str(part.end - part.first)
    if wanted is not None:
        headers["content-range"] = wanted.content_range(info.size)
    found = dependencies(request)
    try:
        pieces = await found.artifacts.get(principal.tenant, sha256, *part)
    except ArtifactMissingError:
        raise ProblemError(no_such_artifact()) from None
    except ArtifactsUnavailableError as error:
        raise ProblemError(store_unavailable(error)) from error
    return Download(pieces, found.transfers, principal.tenant, status, headers)


@router.head(
    "/v1/artifacts/{sha256}",
    response_class=Response,
    summary="Size and type of an artifact, as headers",
    responses=openapi.answers(None, (200,), _OF_READS),
)
async def head_artifact(request: Request) -> Response:
    _, sha256, info = await _found(request)
    return Response(None, 200, _headers(sha256, info))


async def _found(request: Request) -> tuple[Principal, str, ArtifactInfo]:
    """Raises ProblemError."""
    principal = await authorized(request, "artifacts:read")
    sha256 = hash_of(request)
    try:
        info = await dependencies(request).artifacts.head(principal.tenant, sha256)
    except ArtifactsUnavailableError as error:
        raise ProblemError(store_unavailable(error)) from error
    if info is None:
        raise ProblemError(no_such_artifact())
    return principal, sha256, info


def _headers(sha256: str, info: ArtifactInfo) -> dict[str, str]:
    return {
        **HEADERS,
        "etag": f'"{sha256}"',
        "content-length": str(info.size),
        # Tools and imported files name types, too: what is none would be a header of its own.
        "content-type": info.media_type if _MEDIA_TYPE.fullmatch(info.media_type) else UNTYPED,
    }


def hash_of(request: Request) -> str:
    sha256: str = request.path_params["sha256"]
    if HASH.fullmatch(sha256) is None:
        raise ProblemError(_invalid("path.sha256", "must be 64 lower-case hexadecimal digits"))
    return sha256


def no_such_artifact() -> Problem:
    """The same for one that never was and for one of another tenant."""
    return Problem(ARTIFACT_NOT_FOUND, "There is no artifact with this sha256.")


def _invalid(place: str, detail: str) -> Problem:
    errors: JsonValue = [{"place": place, "detail": detail}]
    return Problem(INVALID_REQUEST, f"{place} {detail}.", {"errors": errors})
