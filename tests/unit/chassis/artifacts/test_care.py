"""What is collected and what is checked, whatever comes between any two steps."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.artifacts import care as artifact_care
from services.chassis.artifacts.care import Reference, check, collect
from services.chassis.artifacts.store import ArtifactsUnavailableError, sha256_of
from services.chassis.errors import SetupError
from tests.support.memory.artifacts import MemoryArtifacts

GRACE = 100.0
TENANT = "acme"


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def wait(self, seconds: float) -> None:
        self.ms += int(1000 * seconds)


@dataclass
class Log:
    """A log of names, and views that follow it when they are waited for."""

    named_at: list[tuple[str, str]] = field(default_factory=list)
    viewed: int = 0
    is_behind: bool = False
    whole: set[str] = field(default_factory=set)
    """Tenants of whom everything counts as named."""

    async def catch_up(self) -> None:
        if self.is_behind:
            raise SetupError("the views are behind")
        self.viewed = len(self.named_at)

    async def named(self, tenant: str, hashes: Collection[str]) -> frozenset[str]:
        if tenant in self.whole:
            return frozenset(hashes)
        seen = {name for owner, name in self.named_at[: self.viewed] if owner == tenant}
        return frozenset(hashes) & seen

    async def all(self, tenant: str | None) -> AsyncIterator[Reference]:
        for owner, name in dict.fromkeys(self.named_at[: self.viewed]):
            if tenant in {None, owner}:
                yield Reference(owner, name, None, "t", 1)


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)
    log: Log = field(default_factory=Log)
    store: MemoryArtifacts = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryArtifacts(self.clock)

    async def put(self, content: str, tenant: str = TENANT) -> str:
        sha256 = sha256_of(content.encode())
        await self.store.put(tenant, sha256, content.encode(), "text/plain")
        return sha256

    async def name(self, content: str, tenant: str = TENANT) -> str:
        """As everybody does: put, then append."""
        sha256 = await self.put(content, tenant)
        self.log.named_at.append((tenant, sha256))
        return sha256

    async def collect(self, tenant: str | None = None, *, dry_run: bool = False) -> artifact_care.Collected:
        return await collect(self.store, self.log, GRACE, tenant, dry_run=dry_run)


@pytest.fixture
def world() -> World:
    return World()


async def test_what_nothing_names_goes_after_two_grace_times(world: World) -> None:
    orphan, kept = await world.put("orphan"), await world.name("kept")
    world.clock.wait(GRACE - 1)
    assert (await world.collect()).set_aside == 0
    world.clock.wait(2)
    done = await world.collect()
    assert (done.looked_at, done.set_aside, done.deleted) == (2, 1, 0)
    assert (TENANT, orphan) in world.store.aside
    world.clock.wait(GRACE - 1)
    assert (await world.collect()).deleted == 0
    world.clock.wait(2)
    done = await world.collect()
    assert (done.deleted, done.deleted_bytes) == (1, 6)
    assert world.store.aside == {}
    assert await world.store.head(TENANT, orphan) is None
    assert await world.store.head(TENANT, kept) is not None


@pytest.mark.parametrize("how", ["put", "touch"])
async def test_a_touch_begins_the_grace_time_anew(world: World, how: str) -> None:
    orphan = await world.put("orphan")
    world.clock.wait(GRACE + 1)
    await (world.put("orphan") if how == "put" else world.store.touch(TENANT, orphan))
    assert (await world.collect()).set_aside == 0
    world.clock.wait(GRACE + 1)
    assert (await world.collect()).set_aside == 1


async def test_what_is_named_for_another_tenant_alone_is_an_orphan(world: World) -> None:
    await world.name("same", "other")
    await world.put("same")
    world.clock.wait(GRACE + 1)
    assert (await world.collect()).set_aside == 1
    assert ("other", sha256_of(b"same")) in world.store.objects


async def test_only_the_tenant_that_was_asked_for_is_collected(world: World) -> None:
    await world.put("a")
    await world.put("b", "other")
    world.clock.wait(GRACE + 1)
    assert (await world.collect("other")).set_aside == 1
    assert set(world.store.objects) == {(TENANT, sha256_of(b"a"))}


async def test_what_was_set_aside_and_is_named_comes_back(world: World) -> None:
    orphan = await world.put("late")
    world.clock.wait(GRACE + 1)
    await world.collect()
    world.log.named_at.append((TENANT, orphan))
    world.clock.wait(GRACE + 1)
    done = await world.collect()
    assert (done.taken_back, done.deleted) == (1, 0)
    assert (TENANT, orphan) in world.store.objects


async def test_a_dry_run_says_the_same_and_does_nothing(world: World) -> None:
    await world.put("a")
    await world.put("b")
    world.clock.wait(GRACE + 1)
    await world.collect()
    await world.put("c")
    world.log.named_at.append((TENANT, sha256_of(b"b")))
    world.clock.wait(GRACE + 1)
    before = (dict(world.store.objects), dict(world.store.aside))
    said = await world.collect(dry_run=True)
    assert (world.store.objects, world.store.aside) == before
    done = await world.collect()
    assert (said.set_aside, said.taken_back, said.deleted) == (done.set_aside, done.taken_back, done.deleted)
    assert (done.set_aside, done.taken_back, done.deleted) == (1, 1, 1)


async def test_nothing_is_collected_by_views_that_are_behind(world: World) -> None:
    await world.put("a")
    world.clock.wait(GRACE + 1)
    world.log.is_behind = True
    with pytest.raises(SetupError):
        await world.collect()
    assert len(world.store.objects) == 1


async def test_a_tenant_of_whom_the_views_lack_records_keeps_all(world: World) -> None:
    await world.put("a")
    world.clock.wait(GRACE + 1)
    world.log.whole.add(TENANT)
    assert (await world.collect()).set_aside == 0


async def test_many_are_asked_about_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_care, "BATCH", 7)
    for number in range(40):
        await (world.name(str(number)) if number % 3 else world.put(str(number)))
    world.clock.wait(GRACE + 1)
    assert (await world.collect()).set_aside == 14
    assert len(world.store.objects) == 26


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "name", "touch_and_name", "get", "wait", "collect", "cut_off"]), st.integers(0, 3)
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 8))
async def test_whatever_happens_no_named_object_is_ever_lost(steps: list[tuple[str, int]], cut: int) -> None:
    """Also where a collector is cut off after any of its steps, and where names come between them."""
    world = World()

    async def between() -> None:
        """In the middle of a collector's work: somebody who found an object names it."""
        for number in range(2):
            content = f"{number}".encode()
            if await world.store.touch(TENANT, sha256_of(content)) is not None:
                world.log.named_at.append((TENANT, sha256_of(content)))

    for what, number in steps:
        content = str(number)
        sha256 = sha256_of(content.encode())
        match what:
            case "put":
                await world.put(content)
            case "name":
                await world.name(content)
            case "touch_and_name":
                if await world.store.touch(TENANT, sha256) is not None:
                    world.log.named_at.append((TENANT, sha256))
            case "get":
                await world.store.head(TENANT, sha256)
            case "wait":
                world.clock.wait(GRACE * 0.7 * (1 + number))
            case "collect":
                await world.collect()
            case _:
                await cut_off(world, cut, between)
        for owner, name in world.log.named_at:
            assert await world.store.head(owner, name) is not None, (what, number)


async def cut_off(world: World, after: int, between: Callable[[], Awaitable[None]]) -> None:
    """A collector that dies after so many steps, with others at work before each."""
    left = after

    class Cut(MemoryArtifacts):
        async def set_aside(self, tenant: str, sha256: str) -> None:
            await step()
            await super().set_aside(tenant, sha256)

        async def delete_aside(self, tenant: str, sha256: str) -> None:
            await step()
            await super().delete_aside(tenant, sha256)

    async def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ArtifactsUnavailableError("dead")
        await between()

    store = Cut(world.clock, objects=world.store.objects, aside=world.store.aside)
    try:
        await collect(store, world.log, GRACE)
    except ArtifactsUnavailableError:
        return


# Checking


class Broken(MemoryArtifacts):
    """Some of its objects cannot be read."""

    broken: frozenset[str] = frozenset()

    async def get(self, tenant: str, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        if sha256 in self.broken:
            raise ArtifactsUnavailableError("input/output error")
        return await super().get(tenant, sha256, start, end)


async def test_an_object_that_cannot_be_read_is_one_flaw_among_others(world: World) -> None:
    names = [await world.name(name) for name in ("a", "b", "c", "d")]
    store = Broken(world.clock, objects=world.store.objects)
    store.broken = frozenset(names[:3])
    del world.store.objects[TENANT, names[3]]
    done = await check(store, world.log)
    assert [flaw.what for flaw in done.flaws] == ["unreadable: input/output error"] * 3 + ["missing"]


async def test_a_store_that_is_away_is_no_flaw_of_its_objects(world: World) -> None:
    names = [await world.name(str(number)) for number in range(5)]
    store = Broken(world.clock, objects=world.store.objects)
    store.broken = frozenset(names)
    with pytest.raises(ArtifactsUnavailableError):
        await check(store, world.log)


async def test_what_is_named_and_missing_or_altered_is_found(world: World) -> None:
    good, missing, altered, short = [await world.name(name) for name in ("good", "missing", "altered", "short")]
    del world.store.objects[TENANT, missing]
    world.store.objects[TENANT, altered].data = b"ALTERED"
    await world.put("of no interest")
    done = await check(world.store, world.log)
    assert {(flaw.reference.sha256, flaw.what.partition(":")[0]) for flaw in done.flaws} == {
        (missing, "missing"),
        (altered, "altered"),
    }
    assert (done.objects, done.flawed) == (4, 2)
    assert good and short


async def test_a_quick_check_reads_nothing(world: World) -> None:
    altered = await world.name("altered")
    world.store.objects[TENANT, altered].data = b"ALTERED"
    assert (await check(world.store, world.log, read=False)).flawed == 0


async def test_a_size_that_is_not_the_recorded_one_is_found_without_reading(world: World) -> None:
    class Sized(Log):
        async def all(self, tenant: str | None) -> AsyncIterator[Reference]:
            async for one in super().all(tenant):
                yield one._replace(size=99)

    sha256 = await world.name("x")
    log = Sized(world.log.named_at)
    [flaw] = (await check(world.store, log, read=False)).flaws
    assert flaw.what == "altered: it has 1 bytes, and had 99"
    assert sha256


async def test_a_check_takes_back_what_was_set_aside_by_mistake(world: World) -> None:
    named = await world.name("x")
    await world.store.set_aside(TENANT, named)
    assert (await check(world.store, world.log)).flawed == 0
    assert (TENANT, named) in world.store.objects


async def test_flaws_are_counted_beyond_those_that_are_listed(world: World) -> None:
    for number in range(5):
        await world.name(str(number))
    world.store.objects.clear()
    done = await check(world.store, world.log, flaws_max=2)
    assert (len(done.flaws), done.flawed) == (2, 5)
