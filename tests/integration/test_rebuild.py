"""Rebuilding the views beside the live ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import asyncpg
import pytest

from services.chassis.log.port import Outgoing
from services.chassis.postgres.tenancy import TenantPool
from services.projector.generations.errors import BusyError, RebuildError
from services.projector.generations.generations import (
    ADVISORY_LOCK,
    ensure_live,
    migrate,
    view_checksums,
)
from services.projector.rebuilding.progress import Progress
from services.projector.rebuilding.rebuild import rebuild
from tests.support.recorded.histories import (
    History,
    plain_turn,
)
from tests.support.worlds.projector import World, key_of, settings_of


@pytest.fixture
async def database(fresh_database: str) -> str:
    await migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    made = await asyncpg.connect(database)
    yield made
    await made.close()


@pytest.fixture
async def world(database: str, connection: asyncpg.Connection) -> World:
    return World(database, connection)


# Rebuild


async def test_a_rebuild_takes_over_under_load_and_readers_never_notice(world: World) -> None:
    progress: list[Progress] = []
    seen: list[int] = []
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            await world.append_history(plain_turn(History(key_of(number))))
            number += 1
            await asyncio.sleep(0.01)

    async def read() -> None:
        reader = await asyncpg.connect(world.dsn)
        while not done.is_set():
            row = await reader.fetchrow(
                "select (select sum(next_offset) from views.positions) as at, (select count(*) from views.events) as seen"
            )
            assert row["at"] == row["seen"]
            seen.append(row["at"])
        await reader.close()

    async with world.projector():
        await world.append(key_of(1), Outgoing(b"nobody", b"x", (("a", b"b"),), 5))
        await world.append_history(plain_turn(History(key_of(500))))
        await world.all_shown()
        await world.connection.execute("delete from views_g1.dead_letters")  # else it counts as an event below
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            await asyncio.sleep(0.3)
            log = world.broker.connect("rebuild")
            new = await rebuild(log, world.dsn, settings_of(world.dsn), progress.append)
            await asyncio.sleep(0.5)
            done.set()
        await world.all_shown()
        assert new.number == 2
        assert await world.connection.fetchval("select number from views.generation") == 2
        assert await world.connection.fetchval("select to_regnamespace('views_g1')") is None
        assert await world.sums() == await world.rebuilt_sums()
    assert progress[-1].phase == "done" and progress[-1].records_done <= progress[-1].records_total
    assert {step.phase for step in progress} == {"reading", "swapping", "done"}


async def test_reads_through_a_swap_neither_fail_nor_go_back(world: World) -> None:
    async with world.projector():
        for number in range(30):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
        done = asyncio.Event()
        seen: list[tuple[int, int]] = []

        async def read() -> None:
            reader = await asyncpg.connect(world.dsn)
            while not done.is_set():
                seen.append(
                    tuple(
                        await reader.fetchrow(
                            "select (select sum(next_offset) from views.positions), (select count(*) from views.events)"
                        )
                    )
                )
            await reader.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            tasks.create_task(read())
            for _ in range(3):
                await rebuild(world.broker.connect("rebuild"), world.dsn, settings_of(world.dsn), lambda _: None)
            done.set()
    assert len(seen) > 20
    assert set(seen) == {(world.appended, world.appended)}


async def test_one_rebuild_at_a_time_and_the_old_one_can_stay(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    holder = await asyncpg.connect(world.dsn)
    await holder.execute("select pg_advisory_lock($1)", ADVISORY_LOCK)
    with pytest.raises(BusyError, match="another rebuild"):
        await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)
    await holder.close()
    await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None, keep_old=True)
    statuses = await world.connection.fetch("select number, status from threadlog.generations order by number")
    assert [tuple(row) for row in statuses] == [(1, "old"), (2, "live")]
    assert await view_checksums(world.connection, "views_g1") == await view_checksums(world.connection, "views_g2")
    unknown = await world.connection.fetch(
        "select relname from pg_class where relnamespace = 'views_g2'::regnamespace and relkind = 'r' and reltuples < 0"
    )
    assert unknown == [], "the planner knows nothing of these tables"


async def test_a_rebuild_that_cannot_finish_leaves_the_live_views(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    reader = await asyncpg.connect(world.dsn)
    async with reader.transaction():
        await reader.fetch("select * from views.threads")
        settings = settings_of(world.dsn, swap_lock_seconds=0.05, swap_tries_max=2)
        with pytest.raises(RebuildError, match="long reads"):
            await rebuild(world.client, world.dsn, settings, lambda _: None)
        settings = settings_of(world.dsn, rebuild_seconds_max=0.3, swap_lock_seconds=5)
        with pytest.raises(RebuildError, match="not caught up"):
            await rebuild(world.client, world.dsn, settings, lambda _: None)
    await reader.close()
    rows = await world.connection.fetch("select number, status from threadlog.generations order by number")
    assert [tuple(row) for row in rows] == [(1, "live"), (2, "building")]  # the next rebuild goes on with it
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()


async def test_a_rebuild_builds_the_views_of_a_new_log_over_those_of_another(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), "another")
    await world.append_history(plain_turn(History(key_of(1))))
    await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()


async def test_reads_that_were_prepared_for_other_columns_go_on_after_the_swap(world: World) -> None:
    """As when a new version of the projection has columns of other types, or more of them."""
    async with world.projector():
        for number in range(10):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
    progress: list[Progress] = []
    settings = settings_of(world.dsn, swap_tries_max=1, swap_lock_seconds=0.05)
    holder = await asyncpg.connect(world.dsn)
    async with holder.transaction():
        await holder.fetch("select * from views.threads")
        with pytest.raises(RebuildError):
            await rebuild(world.broker.connect("rebuild"), world.dsn, settings, progress.append)
    await holder.close()
    await world.connection.execute("alter table views_g2.threads alter column title type varchar(300)")
    await world.connection.execute("alter table views_g2.threads alter column queued type bigint")
    await world.connection.execute("alter table views_g2.threads add column more int")

    pool = await asyncpg.create_pool(world.dsn, min_size=4, max_size=4)
    tenants = TenantPool(pool)
    done = asyncio.Event()
    seen: set[tuple[int, int]] = set()

    async def read(fetch: Callable[[str], Awaitable[list[asyncpg.Record]]]) -> None:
        while not done.is_set():
            for columns in ("*", "title, queued", "queued"):
                rows = await fetch(f"select {columns} from views.threads where tenant = 'tenant-1'")
                seen.add((len(rows[0]), len(rows)))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(read(pool.fetch))
            tasks.create_task(read(partial(tenants.fetch, "tenant-1")))
            tasks.create_task(read(tenants.fetch_as_operator))
        await asyncio.sleep(0.3)
        new = await rebuild(world.broker.connect("rebuild"), world.dsn, settings_of(world.dsn), progress.append)
        await asyncio.sleep(0.3)
        done.set()
    await pool.close()
    assert new.number == 2
    assert {rows for _, rows in seen} == {3}
    assert max(columns for columns, _ in seen) == len(await world.connection.fetchrow("select * from views.threads"))


async def test_a_view_of_somebody_else_on_columns_that_go_is_named(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    await world.connection.execute("create schema mine")
    await world.connection.execute("create view mine.titles as select title from views.threads")
    assert (await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)).number == 2
    definition = "create or replace view views.threads as select *, 1 as no_longer_there from views_g2.threads"
    await world.connection.execute(definition)
    with pytest.raises(RebuildError, match=r"mine\.titles.*run it again"):
        await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)
    await world.connection.execute("drop schema mine cascade")
    assert (await rebuild(world.client, world.dsn, settings_of(world.dsn), lambda _: None)).number == 3
