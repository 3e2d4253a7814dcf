"""The artifact store as a port: bytes too large for an event, by their sha256 and per tenant.

An object is there whole or not at all. Whoever wants to name one in an event puts or touches it first: that begins a
collector's grace time anew. A collector does not delete what it finds: it sets an object aside, and deletes for good
what was set aside for another grace time. Whoever misses an object takes it back from there. So an object that is named
in the instant in which it is collected is not lost.
"""

import hashlib
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from schemas.errors import ThreadlogError

PIECE_BYTES = 1_048_576
"""What is read and handed on at once."""
UNTYPED = "application/octet-stream"


class ArtifactError(ThreadlogError):
    pass


class ArtifactMismatchError(ArtifactError):
    """The bytes do not have the hash that they were announced with. Nothing was stored."""


class ArtifactTooLargeError(ArtifactError):
    pass


class ArtifactMissingError(ArtifactError):
    pass


class ArtifactsUnavailableError(ArtifactError):
    """The store does not answer, or refuses: nothing is known about the object."""

    retriable = True


class Stored(NamedTuple):
    size: int
    was_there: bool


class ArtifactInfo(NamedTuple):
    size: int
    media_type: str


class Listed(NamedTuple):
    tenant: str
    sha256: str
    size: int
    touched_ms: int
    """When it was last put or touched, or was set aside, by the store's clock."""


class ArtifactStore(Protocol):
    """Every method raises ArtifactsUnavailableError while the store is away, and else only what it says."""

    async def put(self, tenant: str, sha256: str, chunks: bytes | AsyncIterator[bytes], media_type: str) -> Stored:
        """Raises ArtifactMismatchError, ArtifactTooLargeError, and what `chunks` raises; then nothing is stored. What
        is there already is touched, and keeps its media type.
        """
        ...

    async def head(self, tenant: str, sha256: str) -> ArtifactInfo | None: ...

    async def touch(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        """As `head`, and a collector's grace time begins anew."""
        ...

    async def get(self, tenant: str, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end`, in pieces of at most `PIECE_BYTES`. Raises ArtifactMissingError before
        the first piece; a range beyond the end gives what there is.
        """
        ...

    async def now_ms(self) -> int:
        """By the clock that times what is listed: a collector's own may be ahead of it. A bucket says whole
        seconds of it.
        """
        ...

    def list(self, tenant: str | None = None, *, aside: bool = False) -> AsyncIterator[Listed]:
        """In no order. `aside` lists what was set aside instead."""
        ...

    async def set_aside(self, tenant: str, sha256: str) -> None:
        """Whoever asks for the object afterwards takes it back. Without effect where it is missing."""
        ...

    async def delete_aside(self, tenant: str, sha256: str) -> None:
        """For good; what is in its place stays. Without effect where nothing was set aside."""
        ...


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def digest_of(pieces: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


async def collected(pieces: AsyncIterator[bytes]) -> bytes:
    """All pieces as one, for callers that know that they are few."""
    return b"".join([piece async for piece in pieces])


def require_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise ArtifactTooLargeError(f"an artifact may have {bytes_max} bytes (THREADLOG_ARTIFACT_BYTES_MAX)")


def require_hash(announced: str, found: str) -> None:
    if announced != found:
        raise ArtifactMismatchError(f"the bytes have the sha256 {found}, not {announced}")
