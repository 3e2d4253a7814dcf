"""The artifact store in a folder, or in a bucket of S3, Google or Azure, through obstore.

**Writing.** Incoming bytes are spooled and hashed first. Only bytes with the right hash are handed to the store, whose
put is atomic. So a process that dies leaves a whole object or none.

**Times.** Stores cannot change the time of an object without copying it. So beside each object there is a companion
with its media type, and touching an object writes the companion anew. The newer of the two times counts.

**Places.** Objects are at `TENANT/ab/abcd…`. A capital of a tenant's name becomes `=` and the small letter, because
some file systems do not distinguish them. What was set aside is below `=/`, which no tenant's folder can be.

**Setting aside** writes a companion below `=/` first and moves the object then. If the process dies in between, the
object is still in its place, and the lonely companion is overwritten next time. Taking back works the same way.
"""

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, from_url

from services.chassis.artifacts.store import (
    PIECE_BYTES,
    UNTYPED,
    ArtifactInfo,
    ArtifactMissingError,
    ArtifactsUnavailableError,
    Listed,
    Stored,
    require_hash,
    require_size,
    sha256_of,
)
from services.chassis.settings import MIB, Settings

if TYPE_CHECKING:
    from obstore import ListStream, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore

SPOOL_MEMORY_BYTES: Final = 4 * MIB
"""Bytes of one upload that stay in memory. With more, it goes to a temporary file."""
PART_BYTES: Final = 8 * MIB
"""Size of the parts in which a large object is uploaded to a bucket. S3 takes none below 5 MiB."""
PARTS_AT_ONCE: Final = 2
"""Parts of one upload that are sent at the same time: each is in memory meanwhile."""
REQUEST_SECONDS: Final = 30.0
"""How long one request to the store may take, an upload of many bytes excepted."""
UPLOAD_BYTES_PER_SECOND: Final = MIB
"""The slowest upload that is waited for, beyond the time of one request."""
ASIDE: Final = "="
"""The folder of what was set aside."""
COMPANION: Final = ".type"
"""The ending of a companion's name."""
NOW: Final = f"{ASIDE}/.now"
"""An object that is written to learn the store's time."""

_PATH = re.compile(r"([a-z0-9=._-]+)/([0-9a-f]{2})/(\2[0-9a-f]{62})", re.ASCII)

T = TypeVar("T")


def open_artifacts(settings: Settings) -> "ObjectArtifacts":
    """Return the store. Nothing is connected yet, so a service starts while its store is away."""
    return ObjectArtifacts(settings.artifacts_url, settings.artifact_bytes_max)


class ObjectArtifacts:
    """Implements `ArtifactStore` through obstore."""

    def __init__(self, url: str, bytes_max: int, timeout_seconds: float = REQUEST_SECONDS) -> None:
        self._url = url
        self._bytes_max = bytes_max
        self._timeout_seconds = timeout_seconds
        self._opened: ObjectStore | None = None

    async def put(self, tenant: str, sha256: str, chunks: bytes | AsyncIterator[bytes], media_type: str) -> Stored:
        if isinstance(chunks, bytes):
            require_size(len(chunks), self._bytes_max)
            # Hashing a large object takes milliseconds, which the event loop must not wait for.
            large = len(chunks) > PIECE_BYTES
            require_hash(sha256, await asyncio.to_thread(sha256_of, chunks) if large else sha256_of(chunks))
            return await self._store(tenant, sha256, chunks, len(chunks), media_type)
        with tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as spool:
            size = await _spool(chunks, spool, sha256, self._bytes_max)
            spool.seek(0)
            return await self._store(tenant, sha256, spool, size, media_type)

    async def head(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        size = await self._size(tenant, sha256)
        return None if size is None else ArtifactInfo(size, await self._media_type(tenant, sha256))

    async def touch(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        found = await self.head(tenant, sha256)
        if found is None:
            return None
        await self._write(_path(tenant, sha256) + COMPANION, found.media_type.encode())
        return found if await self._size(tenant, sha256) is not None else None

    async def get(self, tenant: str, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        size = await self._size(tenant, sha256)
        if size is None:
            raise ArtifactMissingError(f"there is no artifact {sha256}")
        return self._pieces(tenant, sha256, start, size if end is None else min(end, size))

    async def now_ms(self) -> int:
        """Return the store's time, from an object that is written for it: no store can be asked."""
        await self._write(NOW, b"")
        found = await self._asked(obstore.head_async(self._open(), NOW))
        return _ms_of(found)

    async def list(self, tenant: str | None = None, *, aside: bool = False) -> AsyncIterator[Listed]:
        root = ASIDE if aside else ""
        prefix = "/".join(part for part in (root, _folder(tenant) if tenant else "") if part)
        async for listed in self._listed(prefix, root):
            yield listed

    async def set_aside(self, tenant: str, sha256: str) -> None:
        path = _path(tenant, sha256)
        if await self._size_at(path) is None:
            return
        await self._write(f"{ASIDE}/{path}{COMPANION}", (await self._media_type(tenant, sha256)).encode())
        if await self._move(path, f"{ASIDE}/{path}"):
            await self._remove([path + COMPANION])
        elif await self._size_at(f"{ASIDE}/{path}") is None:
            # The object is gone altogether. If it is aside, another collector moved it: its companion says since when.
            await self._remove([f"{ASIDE}/{path}{COMPANION}"])

    async def delete_aside(self, tenant: str, sha256: str) -> None:
        path = f"{ASIDE}/{_path(tenant, sha256)}"
        await self._remove([path, path + COMPANION])

    async def _store(self, tenant: str, sha256: str, data: bytes | IO[bytes], size: int, media_type: str) -> Stored:
        path = _path(tenant, sha256)
        if await self._size(tenant, sha256) == size and await self.touch(tenant, sha256) is not None:
            return Stored(size, was_there=True)
        await self._write(path + COMPANION, media_type.encode())
        await self._asked(
            obstore.put_async(
                self._open(),
                path,
                data,
                use_multipart=size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            ),
            extra_seconds=size / UPLOAD_BYTES_PER_SECOND,
        )
        return Stored(size, was_there=False)

    async def _size(self, tenant: str, sha256: str) -> int | None:
        """Return the size of an object, or None. An object that a collector has set aside is taken back first."""
        path = _path(tenant, sha256)
        if (size := await self._size_at(path)) is not None or await self._size_at(f"{ASIDE}/{path}") is None:
            return size
        media_type = await self._read(f"{ASIDE}/{path}{COMPANION}")
        await self._write(path + COMPANION, media_type or UNTYPED.encode())
        if await self._move(f"{ASIDE}/{path}", path):
            await self._remove([f"{ASIDE}/{path}{COMPANION}"])
        return await self._size_at(path)

    async def _size_at(self, path: str) -> int | None:
        try:
            found = await self._asked(obstore.head_async(self._open(), path))
        except ArtifactMissingError:
            return None
        return found["size"]

    async def _media_type(self, tenant: str, sha256: str) -> str:
        return (await self._read(_path(tenant, sha256) + COMPANION) or UNTYPED.encode()).decode(errors="replace")

    async def _pieces(self, tenant: str, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        path = _path(tenant, sha256)
        while start < end:
            length = min(PIECE_BYTES, end - start)
            try:
                piece = await self._piece(path, start, length)
            except ArtifactMissingError:
                if await self._size(tenant, sha256) is None:
                    raise
                piece = await self._piece(path, start, length)  # it was set aside meanwhile, and is back now
            if len(piece) != length:
                raise ArtifactsUnavailableError(f"{path} ended after {start + len(piece)} bytes while it was read")
            yield piece
            start += length

    async def _piece(self, path: str, start: int, length: int) -> bytes:
        return bytes(await self._asked(obstore.get_range_async(self._open(), path, start=start, length=length)))

    async def _listed(self, prefix: str, root: str) -> AsyncIterator[Listed]:
        """Yield objects with the time that counts, from a listing of objects and companions.

        A bucket lists an object and its companion one after the other, a folder in any order. So whichever comes first
        is remembered until the other one comes.
        """
        sizes: dict[str, tuple[int, int]] = {}
        touched: dict[str, int] = {}
        stream = obstore.list(self._open(), prefix=prefix or None)
        while (batch := await self._next(stream)) is not None:
            for found in batch:
                path = found["path"].removeprefix(f"{root}/") if root else found["path"]
                at = _ms_of(found)
                name = path.removesuffix(COMPANION)
                if (key := _parse(name)) is None:
                    continue
                if name != path:
                    if name not in sizes:
                        touched[name] = at
                        continue
                    size, put = sizes.pop(name)
                    yield Listed(*key, size, at if root else max(at, put))
                elif name in touched:
                    companion = touched.pop(name)
                    yield Listed(*key, found["size"], companion if root else max(at, companion))
                else:
                    sizes[name] = (found["size"], at)
        for name, (size, put) in sizes.items():
            if root:
                # Nothing says since when it is aside: a reader was taking it back when another collector moved it. From
                # now on something does.
                await self._write(f"{root}/{name}{COMPANION}", UNTYPED.encode())
            elif (key := _parse(name)) is not None:
                yield Listed(*key, size, put)

    async def _next(self, stream: "ListStream[Sequence[ObjectMeta]]") -> "Sequence[ObjectMeta] | None":
        try:
            return await self._asked(anext(stream, None))
        except ArtifactMissingError:
            return None

    async def _read(self, path: str) -> bytes | None:
        try:
            return bytes(await (await self._asked(obstore.get_async(self._open(), path))).bytes_async())
        except ArtifactMissingError:
            return None

    async def _write(self, path: str, data: bytes) -> None:
        await self._asked(obstore.put_async(self._open(), path, data, use_multipart=False))

    async def _move(self, source: str, target: str) -> bool:
        try:
            await self._asked(obstore.rename_async(self._open(), source, target))
        except ArtifactMissingError:
            return False
        return True

    async def _remove(self, paths: "Sequence[str]") -> None:
        for path in paths:
            try:
                await self._asked(obstore.delete_async(self._open(), path))
            except ArtifactMissingError:
                continue

    async def _asked(self, answer: Awaitable[T], extra_seconds: float = 0) -> T:
        """Await an answer of the store in time, and translate its errors to the port's.

        Raise ArtifactMissingError or ArtifactsUnavailableError.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds + extra_seconds):
                return await answer
        except (FileNotFoundError, NotFoundError):
            raise ArtifactMissingError("there is no such object") from None
        except TimeoutError:
            raise ArtifactsUnavailableError(f"{self._url} did not answer in time") from None
        except (BaseError, OSError) as error:
            raise ArtifactsUnavailableError(f"{self._url}: {_first_line(error)}") from error

    def _open(self) -> "ObjectStore":
        if self._opened is None:
            try:
                self._opened = _open(self._url, self._timeout_seconds)
            except (BaseError, OSError, ValueError) as error:
                raise ArtifactsUnavailableError(f"{self._url} cannot be opened: {_first_line(error)}") from error
        return self._opened


def _open(url: str, timeout_seconds: float) -> "ObjectStore":
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)), mkdir=True)
    timeout = timedelta(seconds=timeout_seconds)
    # This allows plain HTTP for an endpoint that is configured as http://, and for nothing else.
    options: ClientConfig = {"timeout": timeout, "allow_http": True}
    return from_url(url, client_options=options, retry_config={"retry_timeout": timeout})


async def _spool(chunks: AsyncIterator[bytes], spool: IO[bytes], sha256: str, bytes_max: int) -> int:
    """Write all chunks to the spool; return their size.

    Files are written and hashed in a thread, so that the event loop goes on. Raise ArtifactTooLargeError,
    ArtifactMismatchError, ArtifactsUnavailableError, and what `chunks` raises.
    """
    digest = hashlib.sha256()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        require_size(size, bytes_max)
        try:
            if len(chunk) >= PIECE_BYTES or size > SPOOL_MEMORY_BYTES:
                await asyncio.to_thread(_add, chunk, spool, digest)
            else:
                _add(chunk, spool, digest)
        except OSError as error:  # TMPDIR is full, which is as bad as a store that is away, and may pass
            raise ArtifactsUnavailableError(f"the upload cannot be written to a temporary file: {error}") from error
    require_hash(sha256, digest.hexdigest())
    return size


def _add(chunk: bytes, spool: IO[bytes], digest: "hashlib._Hash") -> None:
    spool.write(chunk)
    digest.update(chunk)


def _ms_of(found: "ObjectMeta") -> int:
    return int(found["last_modified"].timestamp() * 1000)


def _folder(tenant: str) -> str:
    return "".join(f"={letter.lower()}" if letter.isupper() else letter for letter in tenant)


def _path(tenant: str, sha256: str) -> str:
    return f"{_folder(tenant)}/{sha256[:2]}/{sha256}"


def _parse(path: str) -> tuple[str, str] | None:
    match = _PATH.fullmatch(path)
    return None if match is None else (re.sub("=(.)", lambda found: found[1].upper(), match[1]), match[3])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
