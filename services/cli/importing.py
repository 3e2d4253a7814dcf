"""Sessions' files to the service: uploaded, named in imports, and followed until they are done."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx2
from pydantic import JsonValue

from services.client.client import RefusedError, ThreadlogClient, UnreachableError
from services.importer.beside import COMPANION_BYTES_MAX, MEDIA_TYPES
from services.importer.model import Tool
from services.importer.walk import SESSION_SUFFIX, SessionFile

FILES_AT_ONCE: Final = 200
"""Of one import."""
POLL_SECONDS: Final = 0.3
TRIES: Final = 5
PIECE_BYTES: Final = 1 << 20
UPLOADS_AT_ONCE: Final = 4
UPLOAD_SECONDS: Final = 600.0


class Progress(Protocol):
    def uploaded(self, done: int, total: int) -> None: ...

    def file(self, report: dict[str, JsonValue], threads: list[JsonValue]) -> None: ...


@dataclass(frozen=True, slots=True)
class Upload:
    path: Path
    shown: str
    """As the report names the file."""
    name: str
    """Relative to a folder of all, as the service puts it."""
    companion: bool
    sha256: str
    size: int

    def to_json(self) -> dict[str, JsonValue]:
        return {"path": self.name, "sha256": self.sha256, "size": self.size, "companion": self.companion}


async def import_files(
    files: Sequence[SessionFile], tool: Tool, service: tuple[str, str | None, str], progress: Progress
) -> None:
    """Raises RefusedError, UnreachableError, OSError."""
    url, token, tenant = service
    root = _common(files)
    async with ThreadlogClient(url, token=token, tenant=tenant) as client, _transport(url, token, tenant) as transport:
        for first in range(0, len(files), FILES_AT_ONCE):
            part = files[first : first + FILES_AT_ONCE]
            uploads = [upload for file in part for upload in await asyncio.to_thread(_uploads, file, root)]
            await _upload(transport, uploads, progress)
            await _follow(client, tool, uploads, progress)


def _common(files: Sequence[SessionFile]) -> Path:
    folders = [str(file.path.resolve().parent) for file in files]
    return Path(os.path.commonpath(folders)) if folders else Path()


def _uploads(file: SessionFile, root: Path) -> list[Upload]:
    """The file and what lies beside it: the folder that is named like it, and flattened copies of what was in it."""
    session = file.path.resolve()
    beside = [
        _upload_of(path, str(path), root, companion=True)
        for path in _companions(session)
        if path.suffix != SESSION_SUFFIX and path.stat().st_size <= COMPANION_BYTES_MAX
    ]
    return [_upload_of(session, file.name, root, companion=False), *beside]


def _companions(session: Path) -> Iterator[Path]:
    folder = session.with_suffix("")
    if folder.is_dir():
        yield from sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if session.suffix == SESSION_SUFFIX:
        beside = sorted(session.parent.glob(f"{_literally(session.stem)}*"))
        yield from (path for path in beside if path != session and path.is_file())


def _literally(name: str) -> str:
    return "".join([f"[{letter}]" if letter in "*?[" else letter for letter in name])


def _upload_of(path: Path, shown: str, root: Path, *, companion: bool) -> Upload:
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            sha256.update(piece)
            size += len(piece)
    return Upload(path, shown, path.relative_to(root).as_posix(), companion, sha256.hexdigest(), size)


def _transport(url: str, token: str | None, tenant: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {"x-threadlog-tenant": tenant}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=UPLOAD_SECONDS)


async def _upload(transport: httpx2.AsyncClient, uploads: Sequence[Upload], progress: Progress) -> None:
    places, done = asyncio.Semaphore(UPLOADS_AT_ONCE), 0

    async def one(upload: Upload) -> None:
        nonlocal done
        async with places:
            await _put(transport, upload)
        done += 1
        progress.uploaded(done, len(uploads))

    async with asyncio.TaskGroup() as group:
        for upload in {upload.sha256: upload for upload in uploads}.values():
            group.create_task(one(upload))


async def _put(transport: httpx2.AsyncClient, upload: Upload) -> None:
    media_type = MEDIA_TYPES.get(upload.path.suffix, "application/octet-stream")
    headers = {"content-type": media_type, "content-length": str(upload.size)}
    error: Exception | None = None
    for number in range(TRIES):
        await asyncio.sleep(number)
        try:
            response = await transport.put(
                f"/v1/artifacts/{upload.sha256}", content=_pieces(upload.path), headers=headers
            )
        except httpx2.TransportError as failed:
            error = failed
            continue
        if response.is_success:
            return
        body = response.json() if "json" in response.headers.get("content-type", "") else {}
        if response.status_code not in {429, 503}:
            raise RefusedError(response.status_code, body)
        error = RefusedError(response.status_code, body)
    raise UnreachableError(f"{upload.shown} could not be uploaded: {error!r}")


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as opened:
        while piece := await asyncio.to_thread(opened.read, PIECE_BYTES):
            yield piece


async def _follow(client: ThreadlogClient, tool: Tool, uploads: Sequence[Upload], progress: Progress) -> None:
    files: list[JsonValue] = [upload.to_json() for upload in uploads]
    accepted = await client.command("/v1/imports", {"tool": tool, "files": files})
    path = f"/v1/imports/{accepted.body['id']}"
    names = {upload.name: upload.shown for upload in uploads}
    while (standing := await client.get(path))["status"] not in {"done", "failed"}:
        done = standing["done"]
        progress.uploaded(done if isinstance(done, int) else 0, sum(not upload.companion for upload in uploads))
        await asyncio.sleep(POLL_SECONDS)
    after: JsonValue = -1
    while after is not None:
        page = await client.get(f"{path}/files", {"after": int(str(after))})
        found, after = page["files"], page["next"]
        for file in found if isinstance(found, list) else ():
            if isinstance(file, dict) and isinstance(report := file["report"], dict):
                threads = file["threads"]
                report["file"] = names[str(file["path"])]
                progress.file(report, threads if isinstance(threads, list) else [])
    if standing["status"] == "failed":
        raise UnreachableError(f"the import {accepted.body['id']} was given up: {standing['problem']}")
