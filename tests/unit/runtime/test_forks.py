"""Forks in the runtime: the model is shown what the parent showed then, by reference, wherever that is read."""

import asyncio

from schemas.config import Config
from schemas.events import ContextCompacted, Lineage, StepStarted, ThreadCreated, ThreadRewound
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.runtime.models.port import ModelRequest
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.runtime import PlayedModel, runtime, world_of
from tests.support.worlds.services import RuntimeProcess, World

FORK = ThreadKey(TenantId("acme"), ThreadId("fork"))


def said(request: ModelRequest) -> list[str]:
    return [str(item["content"][0]["text"]) for item in request.items if item["kind"] == "message"]  # type: ignore[index,call-overload]


def texts(request: ModelRequest) -> list[str]:
    return [str(item.get("text")) for item in request.items if item["kind"] == "summary"]


async def with_a_turn(world: World, name: str = "t") -> tuple[ThreadKey, RuntimeProcess]:
    process = await runtime(world)
    key = await world.create(name)
    await world.submit(key, "i1", text="first")
    await world.until_rest(key)
    return key, process


async def fork(world: World, parent: ThreadKey, key: ThreadKey = FORK, seq: int | None = None) -> None:
    records = world.of(parent).records
    state = records[(seq or len(records)) - 1][2]
    lineage = Lineage(kind="fork", parent=parent.thread, seq=state.seq, chain=state.chain)
    created = ThreadCreated(config=Config(model="seeded"), lineage=lineage)
    await world.command(key, created, f"fork {key}")


@in_virtual_time
async def test_a_fork_goes_on_from_what_its_parent_showed_and_its_parent_does_not_see_it() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        parent, _ = await with_a_turn(world)
        await fork(world, parent)
        await world.submit(parent, "i2", text="of the parent")
        await world.until_rest(parent, turns=2)
        await world.submit(FORK, "i1", text="of the fork")
        forked = await world.until_rest(FORK)
        assert said(model.requests[-1]) == ["first", "done", "of the fork"]
        assert forked.applied(StepStarted)[0].context.items == 3
        await world.submit(parent, "i3", text="again")
        await world.until_rest(parent, turns=3)
        assert said(model.requests[-1]) == ["first", "done", "of the parent", "done", "again"]


@in_virtual_time
async def test_a_fork_of_a_fork_is_shown_both_before_the_views_hold_it() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        parent, _ = await with_a_turn(world)
        await fork(world, parent)
        await world.submit(FORK, "i1", text="second")
        await world.until_rest(FORK)
        grandchild = FORK._replace(thread=ThreadId("fork-of-the-fork"))
        await fork(world, FORK, grandchild)
        await world.submit(grandchild, "i1", text="third")
        await world.until_rest(grandchild)
        assert said(model.requests[-1]) == ["first", "done", "second", "done", "third"]


@in_virtual_time
async def test_another_owner_is_shown_the_same_and_without_views_too() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        parent, process = await with_a_turn(world)
        await fork(world, parent)
        await world.submit(FORK, "i1", text="second")
        await world.until_rest(FORK)
        await asyncio.sleep(2)
        process.crash()
        for number, is_there in enumerate((True, False), start=2):
            world.store.is_away = not is_there
            owner = await runtime(world, f"r{number}")
            await world.submit(FORK, f"i{number}", text="more")
            await world.until_rest(FORK, turns=number)
            assert said(model.requests[-1]) == [
                "first",
                "done",
                "second",
                "done",
                *["more", "done"] * (number - 2),
                "more",
            ]
            owner.crash()


@in_virtual_time
async def test_a_summary_of_the_forks_own_stands_for_what_it_inherits_until_it_is_rewound() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        parent, _ = await with_a_turn(world)
        await fork(world, parent)
        await world.submit(FORK, "i1", text="second")
        state = (await world.until_rest(FORK)).state
        await world.submit(FORK, "i2", text="third")
        state = (await world.until_rest(FORK, turns=2)).state
        summary = ContextCompacted(base=0, through_seq=state.seq, summary="all of it")
        await world.command(FORK, summary, "compact", actor="service:runtime")
        await world.submit(FORK, "i3", text="fourth")
        await world.until_rest(FORK, turns=3)
        assert (texts(model.requests[-1]), said(model.requests[-1])) == (["all of it"], ["fourth"])
        await world.command(FORK, ThreadRewound(to_turn=1), "rewind")
        await world.submit(FORK, "i4", text="fifth")
        await world.until_rest(FORK, turns=4)
        assert texts(model.requests[-1]) == []
        assert said(model.requests[-1]) == ["first", "done", "second", "done", "fifth"]


@in_virtual_time
async def test_a_fork_of_what_never_was_is_set_aside() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        parent, process = await with_a_turn(world)
        lineage = Lineage(kind="fork", parent=parent.thread, seq=10_000, chain="0" * 64)
        await world.command(FORK, ThreadCreated(config=Config(model="seeded"), lineage=lineage), "fork")
        await world.submit(FORK, "i1", text="second")
        await world.until(lambda: any(
            held.quarantined is not None
            for partition in process.loop.partitions.values()
            for held in partition.threads.values()
        ))  # fmt: skip
        assert len(model.requests) == 1
