"""The artifact store in memory: for simulations and unit tests, held to the same contract as the real one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from services.chassis.artifacts.store import (
    PIECE_BYTES,
    ArtifactInfo,
    ArtifactMissingError,
    ArtifactsUnavailableError,
    Listed,
    Stored,
    require_hash,
    require_size,
    sha256_of,
)
from services.chassis.clock import Clock, SystemClock


@dataclass(slots=True)
class _Object:
    data: bytes
    media_type: str
    touched_ms: int


@dataclass(slots=True, eq=False)
class MemoryArtifacts:
    clock: Clock = field(default_factory=SystemClock)
    bytes_max: int = 64 * PIECE_BYTES
    away: bool = False
    """While set, every method raises ArtifactsUnavailableError."""
    objects: dict[tuple[str, str], _Object] = field(default_factory=dict)
    aside: dict[tuple[str, str], _Object] = field(default_factory=dict)

    async def put(self, tenant: str, sha256: str, chunks: bytes | AsyncIterator[bytes], media_type: str) -> Stored:
        data = chunks if isinstance(chunks, bytes) else b"".join([chunk async for chunk in chunks])
        require_size(len(data), self.bytes_max)
        require_hash(sha256, sha256_of(data))
        if await self.touch(tenant, sha256) is not None:
            return Stored(len(data), was_there=True)
        self.objects[tenant, sha256] = _Object(data, media_type, self.clock.now_ms())
        return Stored(len(data), was_there=False)

    async def head(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        found = self._find(tenant, sha256)
        return None if found is None else ArtifactInfo(len(found.data), found.media_type)

    async def touch(self, tenant: str, sha256: str) -> ArtifactInfo | None:
        found = self._find(tenant, sha256)
        if found is None:
            return None
        found.touched_ms = self.clock.now_ms()
        return ArtifactInfo(len(found.data), found.media_type)

    async def get(self, tenant: str, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        found = self._find(tenant, sha256)
        if found is None:
            raise ArtifactMissingError(f"there is no artifact {sha256}")
        return self._pieces(found.data[start:end])

    async def now_ms(self) -> int:
        self._require_here()
        return self.clock.now_ms()

    async def list(self, tenant: str | None = None, *, aside: bool = False) -> AsyncIterator[Listed]:
        self._require_here()
        for (owner, sha256), found in list((self.aside if aside else self.objects).items()):
            if tenant in {None, owner}:
                yield Listed(owner, sha256, len(found.data), found.touched_ms)

    async def set_aside(self, tenant: str, sha256: str) -> None:
        self._require_here()
        if (found := self.objects.pop((tenant, sha256), None)) is not None:
            found.touched_ms = self.clock.now_ms()
            self.aside[tenant, sha256] = found

    async def delete_aside(self, tenant: str, sha256: str) -> None:
        self._require_here()
        self.aside.pop((tenant, sha256), None)

    async def _pieces(self, data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), PIECE_BYTES):
            self._require_here()
            yield data[start : start + PIECE_BYTES]

    def _find(self, tenant: str, sha256: str) -> _Object | None:
        self._require_here()
        if (tenant, sha256) not in self.objects and (taken_back := self.aside.pop((tenant, sha256), None)) is not None:
            taken_back.touched_ms = self.clock.now_ms()
            self.objects[tenant, sha256] = taken_back
        return self.objects.get((tenant, sha256))

    def _require_here(self) -> None:
        if self.away:
            raise ArtifactsUnavailableError("the store is away")
