"""Care of the artifact store: collect what nothing names, and check what is named.

**When an object may go.** It was neither put nor touched for the grace time, and no event in the log names it. The
views list what events name. They are asked only after they have passed the end that the log had when the object was
listed: before that, they may lack the event that names it.

**The race.** An event that comes later and names the object was preceded by a touch, which may have come after the
listing. So an object is set aside first. A reader still finds it there, and takes it back. Only what has been aside for
another grace time, and is still not named, is deleted.

**What happens if the process dies.** Every step can be repeated, also while another collector runs. A collector that
dies leaves nothing but work for the next one.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from services.chassis.artifacts.store import (
    ArtifactMissingError,
    ArtifactStore,
    ArtifactsUnavailableError,
    Listed,
    digest_of,
)

BATCH: Final = 500
"""Objects that one query asks about."""
UNREADABLE_MAX: Final = 3
"""Objects in a row that may be unreadable. With more, the store counts as away."""


class Reference(NamedTuple):
    """An object that events name."""

    tenant: str
    sha256: str
    size: int | None
    """The size that an event states; None if it states none."""
    thread: str
    seq: int
    """The seq of one event that names the object."""


class References(Protocol):
    """What the views know of named objects."""

    async def catch_up(self) -> None:
        """Wait until the views have passed the end that the log has now. Raise SetupError if that takes too long."""
        ...

    async def named(self, tenant: str, hashes: Collection[str]) -> frozenset[str]:
        """Return the hashes that something names. If the views lack records of the tenant, return all: none may go."""
        ...

    def all(self, tenant: str | None) -> AsyncIterator[Reference]:
        """Yield each object that the views name, once."""
        ...


@dataclass(slots=True)
class Collected:
    """What a collection did, or would do."""

    looked_at: int = 0
    set_aside: int = 0
    taken_back: int = 0
    """Objects that were aside, and that something names now."""
    deleted: int = 0
    deleted_bytes: int = 0


class Flaw(NamedTuple):
    """An object that is not as events say."""

    reference: Reference
    what: str


@dataclass(slots=True)
class Checked:
    """What a check has found."""

    objects: int = 0
    size: int = 0
    flaws: list[Flaw] = field(default_factory=list)
    """The first flaws; `flawed` counts all."""
    flawed: int = 0


async def collect(
    store: ArtifactStore,
    references: References,
    grace_seconds: float,
    tenant: str | None = None,
    *,
    dry_run: bool = False,
) -> Collected:
    """Delete what was aside for the grace time, then set aside what nothing names.

    In this order, so that nothing is set aside and deleted in one run. With `dry_run` nothing is changed. Raise
    ArtifactsUnavailableError, and what `references` raises; what was done until then stays done.
    """
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
    """Return the hashes of a batch that something names, as of an end of the log after the batch was listed."""
    await references.catch_up()
    return await references.named(batch[0].tenant, [listed.sha256 for listed in batch])


async def _old(listing: AsyncIterator[Listed], before_ms: int, done: Collected) -> AsyncIterator[list[Listed]]:
    """Yield objects that were not touched since `before_ms`, in batches of one tenant."""
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
    """Check that what events name exists and, with `read`, has the right bytes.

    Raise ArtifactsUnavailableError if the store is away. A single object that cannot be read is a flaw instead.
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
    """Return what is wrong with an object, or None."""
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
