"""The artifact store as a port: bytes too large for an event, by their sha256 and per tenant.

An object exists whole or not at all. A process that wants to name an object in an event puts or touches it first, which
starts a collector's grace time anew. If the process dies between the two, the object is garbage, and is collected
later.

A collector does not delete what it finds. It sets an object aside, and deletes only what has been aside for another
grace time. A reader that misses an object takes it back from there. So an object that is named at the moment at which
it is collected is not lost.
"""

import hashlib
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

from schemas.errors import ThreadlogError

PIECE_BYTES: Final = 1_048_576
"""Bytes that are read and handed on at once."""
UNTYPED: Final = "application/octet-stream"
"""The media type of an object whose own type is lost or was never given."""


class ArtifactError(ThreadlogError):
    """The base of what the store raises."""


class ArtifactMismatchError(ArtifactError):
    """The bytes do not have the hash that they were announced with. Nothing was stored."""


class ArtifactTooLargeError(ArtifactError):
    """The object is larger than artifacts may be. Nothing was stored."""


class ArtifactMissingError(ArtifactError):
    """The store answers, and does not have the object."""


class ArtifactsUnavailableError(ArtifactError):
    """The store does not answer, or refuses. Nothing is known about the object, and another try may help."""

    retriable = True


class Stored(NamedTuple):
    """The result of a put."""

    size: int
    was_there: bool


class ArtifactInfo(NamedTuple):
    """What the store knows of an object without reading it."""

    size: int
    media_type: str


class Listed(NamedTuple):
    """A listing yields one of these for each object."""

    tenant: str
    sha256: str
    size: int
    touched_ms: int
    """When the object was last put or touched, or was set aside, by the store's clock."""


class ArtifactStore(Protocol):
    """Objects of all tenants. Every method raises ArtifactsUnavailableError while the store is away, and else only what
    it says.
    """

    async def put(self, tenant: str, sha256: str, chunks: bytes | AsyncIterator[bytes], media_type: str) -> Stored:
        """Store an object. One that exists already is touched, and keeps its media type.

        Raise ArtifactMismatchError, ArtifactTooLargeError, and what `chunks` raises. Then nothing is stored.
        """
        ...

    async def head(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        """Return what is known of an object, or None if it does not exist. One that was set aside is taken back."""
        ...

    async def touch(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        """Do the same as `head`, and start a collector's grace time anew."""
        ...

    async def get(self, tenant: str, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes from `start` up to `end`, in pieces of at most `PIECE_BYTES`.

        A range beyond the end is cut there. Raise ArtifactMissingError before the first piece.
        """
        ...

    async def now_ms(self) -> int:
        """Return the time of the clock that `Listed.touched_ms` comes from.

        A collector's own clock may be ahead of it, and would see objects as older than they are. Buckets report whole
        seconds.
        """
        ...

    def list(self, tenant: str | None = None, *, aside: bool = False) -> AsyncIterator[Listed]:
        """Yield the objects of a tenant, or of all for None, in no order. With `aside`, yield what was set aside
        instead.
        """
        ...

    async def set_aside(self, tenant: str, sha256: str) -> None:
        """Set an object aside. Reading it afterwards takes it back. A missing object is left alone."""
        ...

    async def delete_aside(self, tenant: str, sha256: str) -> None:
        """Delete for good what was set aside. An object that was stored again meanwhile stays."""
        ...


def sha256_of(data: bytes) -> str:
    """Return the sha256 in hexadecimal digits, which is the name of an object."""
    return hashlib.sha256(data).hexdigest()


async def digest_of(pieces: AsyncIterator[bytes]) -> str:
    """Return the sha256 of all pieces together."""
    digest = hashlib.sha256()
    async for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


async def collected(pieces: AsyncIterator[bytes]) -> bytes:
    """Return all pieces as one, for callers that know that there are few."""
    return b"".join([piece async for piece in pieces])


def require_size(size: int, bytes_max: int) -> None:
    """Raise ArtifactTooLargeError if the size is above the limit."""
    if size > bytes_max:
        raise ArtifactTooLargeError(f"an artifact may have {bytes_max} bytes (THREADLOG_ARTIFACT_BYTES_MAX)")


def require_hash(announced: str, found: str) -> None:
    """Raise ArtifactMismatchError if the hashes differ."""
    if announced != found:
        raise ArtifactMismatchError(f"the bytes have the sha256 {found}, not {announced}")
