"""Artifacts: bytes too large for an event, by their sha256; put before an input names them, and read in ranges."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from schemas.ids import TenantId
from services.chassis.artifacts.store import (
    UNTYPED,
    ArtifactInfo,
    ArtifactMismatchError,
    ArtifactMissingError,
    ArtifactStore,
    ArtifactsUnavailableError,
    ArtifactTooLargeError,
)
from services.ingest.files.named_artifacts import store_unavailable
from services.ingest.files.ranges import ByteRange, Unsatisfiable, range_of
from services.ingest.files.transfers import Download, Transfers
from services.ingest.http.answers import ArtifactAnswer, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.body import is_declared_larger
from services.ingest.http.operation import HEADER, Parameters, operation
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
from services.ingest.routes.parameters import ArtifactPart, invalid

_MEDIA_TYPE = re.compile(r"[!-~][ -~]{0,199}", re.ASCII)
"""What is kept as a media type. It is sent back as a header, so it must not contain a line break."""
HEADERS: Final = {
    "accept-ranges": "bytes",
    "cache-control": "private, max-age=31536000, immutable",
    # An upload is never shown as a page of this origin: its scripts would act for whoever looks at it.
    "content-disposition": "attachment",
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}
BINARY: Final[dict[str, Any]] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
_OF_READS = (ARTIFACT_NOT_FOUND, RANGE_NOT_SATISFIABLE, INVALID_REQUEST, ARTIFACTS_UNAVAILABLE, TOO_MANY_TRANSFERS)

_Text = WithJsonSchema({"type": "string"})
"""OpenAPI has no null for a header that is missing."""


class DownloadParameters(Parameters):
    wanted: Annotated[
        str | None,
        HEADER,
        _Text,
        Field(
            alias="Range",
            description="One range of bytes, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-512` (RFC 9110).",
        ),
    ] = None
    known: Annotated[
        str | None,
        HEADER,
        _Text,
        Field(alias="If-None-Match", description="An `ETag`. The answer is 304 if it is that of the artifact."),
    ] = None


@dataclass(frozen=True, slots=True)
class ArtifactRoutes:
    """Uploads and downloads of artifacts."""

    tag: ClassVar = "artifacts"

    artifacts: ArtifactStore
    transfers: Transfers
    bytes_max: int
    """Bytes of one artifact."""

    @operation(
        "PUT",
        "/v1/artifacts/{sha256}",
        "artifacts:write",
        summary="Upload an artifact",
        answer=ArtifactAnswer,
        statuses=(200, 201),
        problems=(
            ARTIFACT_MISMATCH,
            TOO_LARGE,
            MALFORMED_BODY,
            INVALID_REQUEST,
            TOO_MANY_TRANSFERS,
            ARTIFACTS_UNAVAILABLE,
        ),
        sends=BINARY,
    )
    async def put_artifact(self, caller: Principal, sha256: ArtifactPart, request: Request) -> Response:
        """The body is streamed, hashed, and stored whole or not at all. Uploading it again changes nothing; the
        `Content-Type` of the first upload is kept. An artifact that nothing names is collected after a while: name it
        soon, or upload it again.
        """
        media_type = request.headers.get("content-type", UNTYPED)
        if _MEDIA_TYPE.fullmatch(media_type) is None:
            raise ProblemError(invalid("header.content-type", "must be 1 to 200 visible ASCII characters"))
        # An upload that announces that it is too large takes no place and is not spooled.
        if is_declared_larger(request, self.bytes_max):
            raise ProblemError(Problem(TOO_LARGE, f"The artifact is larger than the limit of {self.bytes_max} bytes."))
        tenant = caller.tenant
        with self.transfers.place(tenant):
            try:
                stored = await self.artifacts.put(tenant, sha256, self.transfers.chunks(request), media_type)
                # The type of the first upload is kept, so the store is asked. If the artifact was collected in between,
                # the answer has what was just sent.
                info = await self.artifacts.head(tenant, sha256) or ArtifactInfo(stored.size, media_type)
            except ArtifactMismatchError as error:
                raise ProblemError(Problem(ARTIFACT_MISMATCH, f"{error}.")) from None
            except ArtifactTooLargeError as error:
                raise ProblemError(Problem(TOO_LARGE, f"{error}.")) from None
            except ArtifactsUnavailableError as error:
                raise ProblemError(store_unavailable(error)) from error
        answer = ArtifactAnswer(sha256=sha256, size=info.size, media_type=info.media_type)
        return json_answer(answer, 200 if stored.was_there else 201)

    @operation(
        "GET",
        "/v1/artifacts/{sha256}",
        "artifacts:read",
        summary="Read an artifact, or a range of it",
        answer=None,
        statuses=(200, 206, 304),
        problems=_OF_READS,
        content=BINARY,
    )
    async def get_artifact(
        self, caller: Principal, sha256: ArtifactPart, parameters: DownloadParameters, request: Request
    ) -> Response:
        """The bytes never change, so they may be cached for ever. They are always sent as an attachment, whatever their
        type.
        """
        info = await self._info(caller.tenant, sha256)
        etag = f'"{sha256}"'
        headers = _headers(sha256, info)
        known = parameters.known or ""
        if etag in known or known.strip() == "*":
            del headers["content-length"]
            return Response(None, 304, headers)
        wanted = range_of(parameters.wanted, request.headers.get("if-range"), etag, info.size)
        if isinstance(wanted, Unsatisfiable):
            response = Problem(RANGE_NOT_SATISFIABLE, f"The artifact has {info.size} bytes.").response()
            response.headers["content-range"] = wanted.content_range()
            return response
        status, part = (200, ByteRange(0, info.size)) if wanted is None else (206, wanted)
        headers["content-length"] = str(part.end - part.first)
        if wanted is not None:
            headers["content-range"] = wanted.content_range(info.size)
        try:
            pieces = await self.artifacts.get(caller.tenant, sha256, *part)
        except ArtifactMissingError:
            # It was collected since its size was read.
            raise ProblemError(no_such_artifact()) from None
        except ArtifactsUnavailableError as error:
            raise ProblemError(store_unavailable(error)) from error
        return Download(pieces, self.transfers, caller.tenant, status, headers)

    @operation(
        "HEAD",
        "/v1/artifacts/{sha256}",
        "artifacts:read",
        summary="Read the size and type of an artifact, as headers",
        answer=None,
        problems=_OF_READS,
    )
    async def head_artifact(self, caller: Principal, sha256: ArtifactPart) -> Response:
        """The headers are those of `GET`, without the bytes."""
        return Response(None, 200, _headers(sha256, await self._info(caller.tenant, sha256)))

    async def _info(self, tenant: TenantId, sha256: str) -> ArtifactInfo:
        """Return size and type. Raises ProblemError: artifact-not-found, artifacts-unavailable."""
        try:
            info = await self.artifacts.head(tenant, sha256)
        except ArtifactsUnavailableError as error:
            raise ProblemError(store_unavailable(error)) from error
        if info is None:
            raise ProblemError(no_such_artifact())
        return info


def _headers(sha256: str, info: ArtifactInfo) -> dict[str, str]:
    """Return the headers of a whole artifact. Its hash is its `ETag`, which is why a copy can be kept for ever."""
    return {
        **HEADERS,
        "etag": f'"{sha256}"',
        "content-length": str(info.size),
        # Tools and imported files name media types, too. One with a line break in it would begin another header.
        "content-type": info.media_type if _MEDIA_TYPE.fullmatch(info.media_type) else UNTYPED,
    }


def no_such_artifact() -> Problem:
    """Return the same for an artifact that never existed and for one of another tenant."""
    return Problem(ARTIFACT_NOT_FOUND, "There is no artifact with this sha256.")
