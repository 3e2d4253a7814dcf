"""Generations that are stopped and resumed, compared, gone back to, and of other versions; on a real database."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS_DLQ
from services.chassis.clock import SystemClock
from services.chassis.log.port import Outgoing, TopicPartition
from services.projector.generations.errors import OtherLogError, RebuildError
from services.projector.generations.generations import OtherVersionError, ensure_live, migrate, view_checksums
from services.projector.generations.postgres_store import PostgresStores
from services.projector.generations.store import Generation
from services.projector.metrics import ProjectorMetrics
from services.projector.projections.batch import PROJECTION_VERSION
from services.projector.rebuilding.generation_list import list_generations, remove_generation, use_generation
from services.projector.rebuilding.progress import Progress
from services.projector.rebuilding.rebuild import rebuild
from services.projector.rebuilding.upgrade import done_before, own_generation_live
from tests.support.recorded.histories import History, plain_turn
from tests.support.simulated.log import SimulatedBroker
from tests.support.worlds.projector import PARTITIONS, TOPIC, World, key_of, settings_of, until

SMALL_BATCHES = {"projector_batch_records_max": 20}


@pytest.fixture
async def world(fresh_database: str) -> AsyncIterator[World]:
    await migrate(fresh_database)
    connection = await asyncpg.connect(fresh_database)
    world = World(fresh_database, connection)
    for number in range(12):
        await world.append_history(plain_turn(History(key_of(number))))
    await world.append(key_of(1), Outgoing(b"nobody", b"x", (("a", b"b"),), 5))
    yield world
    await connection.close()


async def _rebuild(world: World, seen: list[Progress] | None = None, **options: Any) -> Generation:
    settings = settings_of(world.dsn, **options.pop("settings", {}))
    progress: list[Progress] = [] if seen is None else seen
    return await rebuild(world.broker.connect("rebuild"), world.dsn, settings, progress.append, **options)


async def _use(world: World, number: int) -> Generation:
    log = world.broker.connect("use")
    return await use_generation(log, world.dsn, settings_of(world.dsn), lambda _: None, number)


async def _statuses(world: World) -> dict[int, str]:
    rows = await world.connection.fetch("select number, status from threadlog.generations order by number")
    return {row[0]: row[1] for row in rows}


async def _is_building(world: World, number: int) -> bool:
    return (await _statuses(world)).get(number) == "building"


class _StopsAfter:
    """The progress of a rebuild that is stopped once it has read so much."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._task = asyncio.current_task()
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        if progress.records_done >= self._records and self._task is not None:
            self._task.cancel()
            self._task = None


async def _stopped_rebuild(world: World, records: int, **changed: Any) -> None:
    async def work() -> None:
        log = world.broker.connect("stopped")
        await rebuild(log, world.dsn, settings_of(world.dsn, **(SMALL_BATCHES | changed)), _StopsAfter(records))

    working = asyncio.create_task(work())
    await asyncio.wait([working])
    assert working.cancelled()


# Stopping and going on


async def test_a_stopped_rebuild_goes_on_where_it_was(world: World) -> None:
    async with world.projector():
        await world.all_shown()
        await _stopped_rebuild(world, 60)
        assert await _statuses(world) == {1: "live", 2: "building"}
        done_before = await world.connection.fetchval("select sum(next_offset) from views_g2.positions")
        assert 0 < done_before < world.appended
        progress: list[Progress] = []
        new = await _rebuild(world, progress, compare=True)
        assert new.number == 2
        assert (progress[0].records_done, progress[-1].records_done) >= (done_before, world.appended)
        assert progress[-1].records_now <= world.appended - done_before + 20  # the batch under way was read again
        assert await world.sums() == await world.rebuilt_sums()
    assert await _statuses(world) == {2: "live", 3: "building"}  # the last is what it was compared with


async def test_a_restart_or_another_version_begins_anew(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), await world.client.cluster_id())
    await _stopped_rebuild(world, 60)
    await _stopped_rebuild(world, 100)
    assert await _statuses(world) == {1: "live", 2: "building"}
    assert (await _rebuild(world, restart=True)).number == 3
    assert await _statuses(world) == {3: "live"}
    await _stopped_rebuild(world, 60)
    await world.connection.execute(
        "update threadlog.generations set projection_version = projection_version - 1 where status = 'building'"
    )
    assert (await _rebuild(world)).number == 5
    assert await _statuses(world) == {5: "live"}
    assert await world.connection.fetchval("select to_regnamespace('views_g4')") is None


async def test_what_was_built_from_another_log_is_not_gone_on_with(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), await world.client.cluster_id())
    await _stopped_rebuild(world, 60)
    await world.connection.execute("update views_g2.positions set last_record = 'another'")
    assert (await _rebuild(world)).number == 3


async def test_it_pauses_while_the_live_generation_falls_behind(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    # A projector that moves slowly and is behind.
    await world.connection.execute("update views_g1.positions set next_offset = 0, last_record = null")
    seen: list[Progress] = []
    settings = {
        **SMALL_BATCHES,
        "projector_rebuild_live_lag_max": 5,
        "rebuild_look_seconds": 0.02,
        "projector_rebuild_records_per_second_max": 100,
    }
    move = "update views_g1.positions set next_offset = next_offset + 1 where partition = 0"
    async with asyncio.TaskGroup() as tasks:
        rebuilding = tasks.create_task(_rebuild(world, seen, settings=settings))
        for _ in range(50):
            await world.connection.execute(move)
            await asyncio.sleep(0.02)
        assert not rebuilding.done()
        done = seen[-1].records_done
        for _ in range(10):
            await world.connection.execute(move)
            await asyncio.sleep(0.02)
        assert seen[-1].records_done == done
    assert rebuilding.result().number == 2  # nobody moved it any more: waiting for it would be of no use
    assert seen[-1].records_done == world.appended


# Comparing


async def test_a_difference_is_named_and_refused_unless_forced(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute("update views_g1.turns set model = 'altered' where tenant = 'tenant-1'")
    await world.connection.execute("delete from views_g1.items where tenant = 'tenant-2' and kind = 'answer'")
    seen: list[Progress] = []
    with pytest.raises(RebuildError) as refused:
        await _rebuild(world, seen, compare=True)
    message = str(refused.value)
    assert "turns of tenant tenant-1: 4 rows in both, with other content" in message
    assert "--force" in message and "--restart" in message and "tenant-0" not in message
    assert {difference.view for difference in seen[-1].differences} <= {"turns", "items"}
    assert await _statuses(world) == {1: "live", 2: "building"}
    async with world.projector():  # goes on with the live one as if nothing had been
        await world.append_history(plain_turn(History(key_of(77))))
        await world.all_shown()
        assert (await _rebuild(world, compare=True, force=True)).number == 2
    assert await _statuses(world) == {2: "live"}
    assert await world.connection.fetchval("select count(*) from views.turns where model = 'altered'") == 0


async def test_it_compares_at_an_equal_position_while_records_come(world: World) -> None:
    async with world.projector(), world.writing(100):
        await asyncio.sleep(0.5)
        for _ in range(3):
            seen: list[Progress] = []
            await _rebuild(world, seen, compare=True)
            assert [progress.phase for progress in seen].count("comparing") > 0
            assert not any(progress.differences for progress in seen)
    async with world.projector():
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_other_versions_may_differ(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute("update views_g1.turns set model = 'of an older projection'")
    await world.connection.execute("update threadlog.generations set projection_version = 0")
    seen: list[Progress] = []
    assert (await _rebuild(world, seen, compare=True)).number == 2
    assert any(progress.differences for progress in seen)


async def test_a_generation_of_the_first_version_is_compared_as_far_as_it_goes(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    for change in (
        "drop table views_g1.plans, views_g1.tasks, views_g1.artifacts cascade",
        "alter table views_g1.positions drop column last_record cascade",
        "update threadlog.generations set projection_version = 1",
    ):
        await world.connection.execute(change)
    seen: list[Progress] = []
    assert (await _rebuild(world, seen, compare=True, keep_old=True)).number == 2
    assert "positions" in {difference.view for progress in seen for difference in progress.differences}
    assert await _statuses(world) == {1: "old", 2: "live"}
    assert await world.sums() == await world.rebuilt_sums()


async def test_one_that_is_ahead_of_a_live_one_that_stands_still_is_not_compared(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute(
        "update views_g1.positions set next_offset = next_offset - 1, last_record = null where partition = 0"
    )
    await _stopped_rebuild(world, world.appended)
    changed = {"compare_wait_seconds": 0.1, "rebuild_look_seconds": 0.02}
    with pytest.raises(RebuildError, match="--no-compare"):
        await _rebuild(world, compare=True, settings=changed)
    assert (await _rebuild(world)).number == 2


# Going back


async def test_going_back_and_forth_loses_nothing(world: World) -> None:
    async with world.projector():
        await world.all_shown()
        async with world.writing(100):
            assert (await _rebuild(world, keep_old=True)).number == 2
            await asyncio.sleep(0.3)
            assert (await _use(world, 1)).number == 1
            await asyncio.sleep(0.3)
            assert (await _use(world, 2)).number == 2
            assert (await _use(world, 2)).number == 2
            await asyncio.sleep(0.3)
            assert (await _use(world, 1)).number == 1
        await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
    assert await _statuses(world) == {1: "live", 2: "old", 3: "building"}


async def test_what_cannot_be_used_is_refused_and_says_why(world: World) -> None:
    async with world.projector():
        await world.all_shown()
        await _rebuild(world, keep_old=True)
        await world.all_shown()
    await _stopped_rebuild(world, 60)
    with pytest.raises(RebuildError, match="threadlog rebuild"):
        await _use(world, 3)
    await world.connection.execute("update threadlog.generations set status = 'scratch' where number = 3")
    with pytest.raises(RebuildError, match="compare"):
        await _use(world, 3)
    with pytest.raises(RebuildError, match=r"no generation 9.*generations list"):
        await _use(world, 9)
    await world.connection.execute("update threadlog.generations set projection_version = 0 where number = 1")
    with pytest.raises(OtherVersionError, match="projection 0"):
        await _use(world, 1)
    await world.connection.execute(
        f"update threadlog.generations set projection_version = {PROJECTION_VERSION}, cluster_id = 'another' "
        "where number = 1"
    )
    with pytest.raises(OtherLogError, match="another log"):
        await _use(world, 1)
    await world.connection.execute("drop schema views_g1 cascade")
    with pytest.raises(RebuildError, match="was dropped"):
        await _use(world, 1)
    assert await _statuses(world) == {1: "old", 2: "live", 3: "scratch"}


async def test_generations_are_listed_and_dropped_but_not_the_live_one(world: World) -> None:
    async with world.projector():
        await world.all_shown()
        await _rebuild(world, keep_old=True)
        await world.all_shown()
    settings = settings_of(world.dsn)
    one, two = await list_generations(world.dsn, settings)
    assert (one.status, two.status) == ("old", "live")
    assert sum(one.positions.values()) == sum(two.positions.values()) == world.appended
    assert two.live_since_ms is not None and two.live_since_ms >= two.created_ms
    assert one.size_bytes is not None and one.size_bytes > 0
    with pytest.raises(RebuildError, match="live"):
        await remove_generation(world.dsn, settings, 2)
    await remove_generation(world.dsn, settings, 1)
    with pytest.raises(RebuildError, match="no generation 1"):
        await remove_generation(world.dsn, settings, 1)
    assert [kept.generation.number for kept in await list_generations(world.dsn, settings)] == [2]


# Other versions


async def _own(world: World, **changed: Any) -> CollectorRegistry:
    settings = settings_of(world.dsn, **changed)
    stores = PostgresStores(world.dsn, settings)
    registry = CollectorRegistry()
    metrics = ProjectorMetrics.register(registry)
    await own_generation_live(world.broker.connect("new"), stores, world.dsn, settings, metrics)
    return registry


async def test_a_newer_projector_refuses_or_builds_its_own_while_the_older_serves(world: World) -> None:
    # What makes it the older one is what the database says; so it must not look there.
    async with world.projector(look_seconds=1_000), world.writing(100):
        await until(world.shown, lambda shown: shown > 0)
        await world.connection.execute("update threadlog.generations set projection_version = projection_version - 1")
        with pytest.raises(OtherVersionError, match=r"newer.*threadlog rebuild.*OTHER_VERSION=build"):
            await _own(world)
        before = await world.shown()
        registry = await _own(world, projector_other_version="build")
        assert await _statuses(world) == {1: "old", 2: "live"}
        done, total = [registry.get_sample_value(f"threadlog_rebuild_{name}_records") or 0 for name in ("done", "log")]
        assert before <= done == total
        assert registry.get_sample_value("threadlog_rebuild_generation") == 0  # it is built
        await until(world.shown, lambda shown: shown > before)
        await _own(world)  # now it fits
    async with world.projector():
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_of_several_newer_projectors_one_builds(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute("update threadlog.generations set projection_version = projection_version - 1")
    changed = {"projector_other_version": "build", "projector_keep_old": False}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(_own(world, **changed))
    assert await _statuses(world) == {2: "live"}


async def test_a_newer_projector_that_has_to_stop_goes_on_later(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute("update threadlog.generations set projection_version = projection_version - 1")
    changed = {"projector_other_version": "build", "projector_rebuild_records_per_second_max": 50}
    stopping = asyncio.Event()

    async def stop_once_something_is_stored() -> None:
        await until(lambda: _is_building(world, 2), lambda is_building: is_building)
        stored = "select coalesce(sum(next_offset), 0) from views_g2.positions"
        await until(lambda: world.connection.fetchval(stored), lambda stored: stored > 0)
        stopping.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stop_once_something_is_stored())
        assert not await done_before(stopping, _own(world, **changed))
    assert await _statuses(world) == {1: "live", 2: "building"}
    assert await done_before(asyncio.Event(), _own(world, projector_other_version="build"))
    assert await _statuses(world) == {1: "old", 2: "live"}


async def test_an_older_projector_always_refuses(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    for column in ("projection_version", "fold_version"):
        await world.connection.execute(f"update threadlog.generations set {column} = {column} + 1")
        with pytest.raises(OtherVersionError, match=r"older.*generations use"):
            await _own(world, projector_other_version="build")
    assert await _statuses(world) == {1: "live"}


async def test_a_running_projector_ends_when_a_newer_generation_takes_over(world: World) -> None:
    with pytest.raises(ExceptionGroup) as ended:
        async with world.projector():
            await world.all_shown()
            await _rebuild(world)
            await world.connection.execute(
                "update threadlog.generations set projection_version = projection_version + 1 where status = 'live'"
            )
            await asyncio.sleep(5)
    [error] = ended.value.exceptions
    assert isinstance(error, OtherVersionError) and "older" in str(error)


# Other logs


async def test_a_topic_made_anew_is_noticed_however_long_it_is(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    world.broker = SimulatedBroker({TOPIC: PARTITIONS, THREAD_EVENTS_DLQ.name: PARTITIONS}, SystemClock())
    world.client = world.broker.connect("client")
    world.appended = 0
    for number in range(200, 230):
        await world.append_history(plain_turn(History(key_of(number))))
    ends = await world.client.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
    stored = await world.connection.fetch('select "partition", next_offset from views.positions')
    assert all(ends[TopicPartition(TOPIC, row[0])] >= row[1] for row in stored)  # not one is beyond the end
    with pytest.raises(ExceptionGroup) as ended:
        async with world.projector():
            await asyncio.sleep(5)
    [error] = ended.value.exceptions
    assert isinstance(error, OtherLogError) and "made anew" in str(error) and "threadlog rebuild" in str(error)
    seen: list[Progress] = []
    assert (await _rebuild(world, seen, compare=True)).number == 2
    assert "comparing" not in {progress.phase for progress in seen}
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(300))))
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_a_rebuild_is_the_way_out_when_the_views_are_beyond_the_end(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    await world.connection.execute("update views_g1.positions set next_offset = next_offset + 1000")
    assert (await _rebuild(world, compare=True)).number == 2
    assert await world.shown() == world.appended
    assert await view_checksums(world.connection, "views_g2") != {}


async def test_a_rebuild_and_a_way_back_after_the_live_schema_was_dropped_by_hand(world: World) -> None:
    async with world.projector():
        await world.all_shown()
    assert (await _rebuild(world, keep_old=True, compare=True)).number == 2
    await world.connection.execute("drop schema views_g2 cascade")
    assert (await _use(world, 1)).number == 1
    assert await _statuses(world) == {1: "live"}
    await world.connection.execute("drop schema views_g1 cascade")
    assert (await _rebuild(world, compare=True)).number == 3
    assert await _statuses(world) == {3: "live"}
    assert await world.sums() == await world.rebuilt_sums()
