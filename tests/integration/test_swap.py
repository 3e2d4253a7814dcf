"""The swap of generations against whoever claims partitions, stands still, or drops schemas by hand meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import asyncpg
import pytest

from services.chassis.log.port import TopicPartition
from services.projector.generations.errors import RebuildError
from services.projector.generations.generations import ensure_live, migrate
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import OnPositions, Positions, ignore_progress
from services.projector.rebuilding.generation_list import list_generations
from services.projector.rebuilding.rebuild import drop_when_unread, rebuild
from services.projector.rebuilding.swap import swap
from services.projector.settings import ProjectorSettings
from tests.support.recorded.histories import History, plain_turn
from tests.support.worlds.projector import PARTITIONS, TOPIC, World, another_generation, key_of, settings_of


@pytest.fixture
async def world(fresh_database: str) -> AsyncIterator[World]:
    await migrate(fresh_database)
    connection = await asyncpg.connect(fresh_database)
    world = World(fresh_database, connection)
    for number in range(8):
        await world.append_history(plain_turn(History(key_of(number))))
    yield world
    await connection.close()


class _StandsStill:
    """A generation that is read no further, in the midst of a swap, until it is let go."""

    def __init__(self) -> None:
        self.is_reading = asyncio.Event()
        self.go = asyncio.Event()

    async def open(self) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)}

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    async def read_to(
        self, ends: Positions, on_progress: OnPositions = ignore_progress, publish_from: Mapping[int, int] | None = None
    ) -> None:
        self.is_reading.set()
        await self.go.wait()

    async def close(self) -> None: ...


async def _during_a_swap(
    world: World, settings: ProjectorSettings, act: Callable[[Generation, _StandsStill], Awaitable[None]]
) -> None:
    old = await ensure_live(world.dsn, settings, await world.client.cluster_id())
    new = await another_generation(world.dsn, settings)
    filling = _StandsStill()

    async def nothing() -> None: ...

    async def swapping() -> None:
        async with MaintenanceLock(world.dsn, settings) as alone:
            await swap(
                *(alone, world.client, filling, new, old, settings),
                is_same_log=True,
                catch_up=nothing,
                on_progress=lambda _: ignore_progress,
            )

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(swapping())
        await filling.is_reading.wait()
        await act(old, filling)
        filling.go.set()


async def _claim(world: World, settings: ProjectorSettings, generation: Generation) -> None:
    store = PostgresStore(world.dsn, settings, generation)
    try:
        await store.claim([0], "first", await world.client.cluster_id())
    finally:
        await store.close()


async def test_a_partition_that_nobody_had_is_not_claimed_beside_a_swap(world: World) -> None:
    settings = settings_of(world.dsn)

    async def act(old: Generation, filling: _StandsStill) -> None:
        claiming = asyncio.create_task(_claim(world, settings, old))
        done, _ = await asyncio.wait([claiming], timeout=1)
        assert not done, "it would be written in a generation that is not live, beside the one that is"
        filling.go.set()
        await claiming

    await _during_a_swap(world, settings, act)


async def test_a_swap_that_stands_still_lets_the_projector_go_on(world: World) -> None:
    settings = settings_of(world.dsn, transaction_idle_seconds=0.5)

    async def act(old: Generation, filling: _StandsStill) -> None:
        async with asyncio.timeout(8):
            await _claim(world, settings, old)

    await _during_a_swap(world, settings, act)
    assert await world.connection.fetchval("select number from views.generation") == 2, "it swaps once it goes on"


async def test_generations_dropped_by_hand_are_told_in_words(world: World) -> None:
    settings = settings_of(world.dsn)
    async with world.projector():
        await world.all_shown()

    async def rebuilt_while(statement: str, phase: str) -> None:
        dropped: list[asyncio.Task[str]] = []

        def drop(progress: object) -> None:
            if getattr(progress, "phase", "") == phase and not dropped:
                dropped.append(asyncio.create_task(world.connection.execute(statement)))

        log = world.broker.connect("rebuild")
        slow = settings_of(world.dsn, projector_rebuild_records_per_second_max=100)
        with pytest.raises(RebuildError, match=r"dropped meanwhile.*[Rr]un it again"):
            await rebuild(log, world.dsn, slow, drop, compare=True, restart=True)
        await asyncio.gather(*dropped)

    await rebuilt_while("drop schema views_g2 cascade", "reading")
    await rebuilt_while("drop schema views_g1 cascade", "reading")
    live = await rebuild(world.client, world.dsn, settings, lambda _: None, compare=True)
    await world.connection.execute(f"drop table {live.schema}.positions cascade")
    listed = {one.generation.number: one.size_bytes for one in await list_generations(world.dsn, settings)}
    assert listed == {live.number: None}


async def test_what_became_live_meanwhile_is_not_dropped(world: World) -> None:
    settings = settings_of(world.dsn)
    live = await ensure_live(world.dsn, settings, await world.client.cluster_id())
    async with MaintenanceLock(world.dsn, settings) as alone:
        with pytest.raises(RebuildError, match="became the live one"):
            await drop_when_unread(alone, live, settings)
    assert await world.connection.fetchval("select to_regclass('views_g1.events') is not null")
