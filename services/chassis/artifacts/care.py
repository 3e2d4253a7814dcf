"""Care of the artifact store: what nothing names is collected, and what is named is checked.

An object may be collected once it was neither put nor touched for the grace time and no event in the log names it. The
views list what events name, so they count only from where they have passed the log's end as of when the object was
listed. An event that comes later and names it was preceded by a touch; that may have come after the listing. So an
object is set aside first, where whoever asks for it still finds it and takes it back, and only what lay there for
another grace time, and is still named by nothing, is deleted.

Every step may be repeated, also beside another collector; one that is cut off leaves nothing but work for the next.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.chassis.artifacts.store import (
    ArtifactMissingError,
    ArtifactStore,
    ArtifactsUnavailableError,
    Listed,
    digest_of,
)

BATCH = 500
"""Objects that are asked about at once."""
UNREADABLE_MAX = 3
"""Objects in a row that cannot be read, before the store counts as away."""


class Reference(NamedTuple):
    tenant: str
    sha256: str
    size: int | None
    """As an event says it."""
    thread: str
    seq: int
    """Of one event that names it."""


class References(Protocol):
    async def catch_up(self) -> None:
        """Until the views have passed the end that the log has now. Raises SetupError where that takes too long."""
        ...

    async def named(self, tenant: str, hashes: Collection[str]) -> frozenset[str]:
        """Those of them that something names; all of them where the views lack records of the tenant."""
        ...

    def all(self, tenant: str | None) -> AsyncIterator[Reference]:
        """Each object that the views name once."""
        ...


@dataclass(slots=True)
class Collected:
    looked_at: int = 0
    set_aside: int = 0
    taken_back: int = 0
    """Of what was set aside: something names it now."""
    deleted: int = 0
    deleted_bytes: int = 0


class Flaw(NamedTuple):
    reference: Reference
    what: str


@dataclass(slots=True)
class Checked:
    objects: int = 0
    size: int = 0
    flaws: list[Flaw] = field(default_factory=list)
    """The first so many."""
    flawed: int = 0


async def collect(
    store: ArtifactStore,
    references: References,
    grace_seconds: float,
    tenant: str | None = None,
    *,
    dry_run: bool = False,
) -> Collected:
    """Raises ArtifactsUnavailableError, and what `references` raises; what was done until then stays done."""
    done = Collected()
    before_ms = await store.now_ms() - int(1000 * grace_seconds)
    async for batch in _old(store.list(tenant, aside=True), before_ms, done):
        named = await _named(references, batch)
        for listed in batch:
            if listed.sha256 in named:
                done.taken_back += 1
                if not dry_run:
                    await store.head(listed.tenant, listed.sha256)
                continue
            done.deleted += 1
            done.deleted_bytes += listed.size
            if not dry_run:
                await store.delete_aside(listed.tenant, listed.sha256)
    async for batch in _old(store.list(tenant), before_ms, done):
        named = await _named(references, batch)
        for listed in batch:
            if listed.sha256 not in named:
                done.set_aside += 1
                if not dry_run:
                    await store.set_aside(listed.tenant, listed.sha256)
    return done


async def _named(references: References, batch: list[Listed]) -> frozenset[str]:
    """Those that something names, as of an end of the log after they were listed."""
    await references.catch_up()
    return await references.named(batch[0].tenant, [listed.sha256 for listed in batch])


async def _old(listing: AsyncIterator[Listed], before_ms: int, done: Collected) -> AsyncIterator[list[Listed]]:
    """Those that were not touched since, in batches of one tenant."""
    batches: dict[str, list[Listed]] = {}
    async for listed in listing:
        done.looked_at += 1
        if listed.touched_ms > before_ms:
            continue
        batch = batches.setdefault(listed.tenant, [])
        batch.append(listed)
        if len(batch) >= BATCH:
            yield batches.pop(listed.tenant)
    for batch in batches.values():
        yield batch


async def check(
    store: ArtifactStore,
    references: References,
    tenant: str | None = None,
    *,
    read: bool = True,
    flaws_max: int = 1_000,
) -> Checked:
    """Whether what events name is there and, with `read`, has the bytes that it should. Raises
    ArtifactsUnavailableError where the store is away, not where some object alone cannot be read.
    """
    done = Checked()
    unreadable = 0
    await references.catch_up()
    async for reference in references.all(tenant):
        done.objects += 1
        try:
            what = await _flaw(store, reference, done, read=read)
            unreadable = 0
        except ArtifactsUnavailableError as error:
            unreadable += 1
            if unreadable > UNREADABLE_MAX:
                raise
            what = f"unreadable: {error}"
        if what is not None:
            done.flawed += 1
            if len(done.flaws) < flaws_max:
                done.flaws.append(Flaw(reference, what))
    return done


async def _flaw(store: ArtifactStore, reference: Reference, done: Checked, *, read: bool) -> str | None:
    tenant, sha256 = reference.tenant, reference.sha256
    info = await store.head(tenant, sha256)
    if info is None:
        return "missing"
    done.size += info.size
    if reference.size is not None and info.size != reference.size:
        return f"altered: it has {info.size} bytes, and had {reference.size}"
    if not read:
        return None
    try:
        found = await digest_of(await store.get(tenant, sha256))
    except ArtifactMissingError:
        return "missing"
    return None if found == sha256 else f"altered: its bytes have the sha256 {found}"
