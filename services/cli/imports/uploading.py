"""Files are uploaded to the service as artifacts. A problem with one file does not stop the others."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
from pydantic import JsonValue

from services.client.client import RefusedError, UnreachableError
from services.importer.companions import MEDIA_TYPES

TRIES: Final = 5
PIECE_BYTES: Final = 1 << 20
UPLOADS_AT_ONCE: Final = 4
UPLOAD_SECONDS: Final = 600.0
LATER: Final = frozenset({429, 502, 503, 504})
OF_THE_FILE: Final = frozenset({413, 422})
"""Refusals of a single file: too large, or other bytes than were announced. Any other refusal would meet every file."""


@dataclass(frozen=True, slots=True)
class Upload:
    path: Path
    shown: str
    """Name of the file in the report."""
    name: str
    """Path relative to a folder of all files, as the service stores it."""
    companion: bool
    sha256: str
    size: int

    def to_json(self) -> dict[str, JsonValue]:
        return {"path": self.name, "sha256": self.sha256, "size": self.size, "companion": self.companion}


class ChangedError(Exception):
    """The file has become shorter since it was hashed."""


def upload_of(path: Path, shown: str, root: Path, *, companion: bool) -> Upload:
    """Return what has to be uploaded of a file. Raises OSError."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            sha256.update(piece)
            size += len(piece)
    return Upload(path, shown, path.relative_to(root).as_posix(), companion, sha256.hexdigest(), size)


def transport_to(url: str, token: str | None, tenant: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {"x-threadlog-tenant": tenant}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=UPLOAD_SECONDS)


async def upload_all(
    transport: httpx2.AsyncClient, uploads: Sequence[Upload], progress: Callable[[int, int], None]
) -> dict[str, str]:
    """Upload the files. Return sha256 → reason for those that were refused. Raises RefusedError, UnreachableError."""
    places, done, refused = asyncio.Semaphore(UPLOADS_AT_ONCE), 0, dict[str, str]()

    async def one(upload: Upload) -> None:
        nonlocal done
        async with places:
            reason = await _put(transport, upload)
        if reason is not None:
            refused[upload.sha256] = reason
        done += 1
        progress(done, len(uploads))

    try:
        async with asyncio.TaskGroup() as group:
            for upload in {upload.sha256: upload for upload in uploads}.values():
                group.create_task(one(upload))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the others are of the same kind: it befell whichever was first
    return refused


async def _put(transport: httpx2.AsyncClient, upload: Upload) -> str | None:
    """Upload one file, and return why it cannot be stored, or None."""
    media_type = MEDIA_TYPES.get(upload.path.suffix, "application/octet-stream")
    headers = {"content-type": media_type, "content-length": str(upload.size)}
    error: Exception | None = None
    for number in range(TRIES):
        await asyncio.sleep(number)
        try:
            response = await transport.put(f"/v1/artifacts/{upload.sha256}", content=_pieces(upload), headers=headers)
        except httpx2.TransportError as failed:
            error = failed
            continue
        except (ChangedError, OSError):
            return "it changed while it was read; import it again"
        if response.is_success:
            return None
        body = response.json() if "json" in response.headers.get("content-type", "") else {}
        refused = RefusedError(response.status_code, body)
        if response.status_code in OF_THE_FILE:
            return f"it was not stored: {body.get('detail') or refused}"
        if response.status_code not in LATER:
            raise refused
        error = refused
    where = f"{transport.base_url}".rstrip("/")
    raise UnreachableError(
        f"{where} took no upload of {upload.shown}: {error!r}. Start a service (`threadlog dev`), or name it by --url"
    )


async def _pieces(upload: Upload) -> AsyncIterator[bytes]:
    """Yield as many bytes as were hashed: sessions grow while somebody works in them. Raises ChangedError, OSError."""
    left = upload.size
    with upload.path.open("rb") as opened:
        while left:
            piece = await asyncio.to_thread(opened.read, min(left, PIECE_BYTES))
            if not piece:
                raise ChangedError
            left -= len(piece)
            yield piece
