"""A bucket that speaks enough of S3 for the artifact store: a real server on this machine, objects in memory."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import unquote
from xml.sax.saxutils import escape

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.cli.local.embedded import free_port

BUCKET = "artifacts"
PAGE_KEYS = 3
"""Few, so that lists have pages."""


@dataclass(slots=True)
class _Stored:
    data: bytes
    at: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'

    def headers(self) -> dict[str, str]:
        return {"etag": self.etag, "last-modified": format_datetime(self.at, usegmt=True), "accept-ranges": "bytes"}


@dataclass(slots=True, eq=False)
class S3Server:
    objects: dict[str, _Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    url: str = ""

    async def bucket(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._delete_many(request)
        prefix, after = request.query_params.get("prefix", ""), request.query_params.get("continuation-token", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page = keys[:PAGE_KEYS]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(keys) > len(page) else ""
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key].data)}</Size>"
            f"<LastModified>{self.objects[key].at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}</LastModified>"
            f"<ETag>{escape(self.objects[key].etag)}</ETag></Contents>"
            for key in page
        )
        return _xml(
            f"<ListBucketResult>{listed}<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}</ListBucketResult>"
        )

    async def object(self, request: Request) -> Response:
        key: str = request.path_params["key"]
        query = request.query_params
        match request.method:
            case "POST" if "uploads" in query:
                upload = f"upload-{len(self.uploads)}"
                self.uploads[upload] = {}
                return _xml(
                    f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                )
            case "POST":
                parts = self.uploads.pop(query["uploadId"])
                stored = self._put(key, b"".join(parts[number] for number in sorted(parts)))
                return _xml(
                    f"<CompleteMultipartUploadResult><ETag>{escape(stored.etag)}</ETag></CompleteMultipartUploadResult>"
                )
            case "PUT" if "uploadId" in query:
                part = await request.body()
                self.uploads[query["uploadId"]][int(query["partNumber"])] = part
                return Response(headers={"etag": f'"{len(part)}"'})
            case "PUT" if (source := request.headers.get("x-amz-copy-source")) is not None:
                found = self.objects.get(unquote(source).lstrip("/").removeprefix(f"{BUCKET}/"))
                if found is None:
                    return _missing()
                copied = self._put(key, found.data)
                return _xml(f"<CopyObjectResult><ETag>{escape(copied.etag)}</ETag></CopyObjectResult>")
            case "PUT":
                return Response(headers={"etag": self._put(key, await request.body()).etag})
            case "DELETE":
                self.objects.pop(key, None)  # S3 answers alike where there was none
                return Response(status_code=204)
            case _:
                return self._read(request, key)

    def _put(self, key: str, data: bytes) -> _Stored:
        self.objects[key] = _Stored(data, datetime.now(UTC))
        return self.objects[key]

    def _read(self, request: Request, key: str) -> Response:
        found = self.objects.get(key)
        if found is None:
            return _missing()
        headers = found.headers()
        asked = request.headers.get("range")
        if asked is None:
            return Response(found.data, headers=headers)
        first, last = (int(place) for place in asked.removeprefix("bytes=").split("-"))
        if first >= len(found.data):
            return Response(status_code=416, headers=headers)
        part = found.data[first : last + 1]
        headers["content-range"] = f"bytes {first}-{first + len(part) - 1}/{len(found.data)}"
        return Response(part, 206, headers)

    async def _delete_many(self, request: Request) -> Response:
        text = (await request.body()).decode()
        keys = [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
        for key in keys:
            self.objects.pop(unquote(key), None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml(f"<DeleteResult>{deleted}</DeleteResult>")


def _xml(body: str) -> Response:
    return Response(f'<?xml version="1.0" encoding="UTF-8"?>{body}', media_type="application/xml")


def _missing() -> Response:
    return Response("<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>", 404, media_type="application/xml")


@contextlib.asynccontextmanager
async def s3_server() -> AsyncIterator[S3Server]:
    made = S3Server()
    app = Starlette(
        routes=[
            Route(f"/{BUCKET}/{{key:path}}", made.object, methods=["GET", "HEAD", "PUT", "POST", "DELETE"]),
            Route(f"/{BUCKET}", made.bucket, methods=["GET", "POST"]),
        ]
    )
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off", ws="none"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # signals are the test run's
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn tells no other way
        await asyncio.sleep(0.01)
    made.url = f"http://127.0.0.1:{port}"
    try:
        yield made
    finally:
        server.should_exit = True
        await serving
