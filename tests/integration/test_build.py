"""A generation that is filled up to where it is told to."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Outgoing, TopicPartition
from services.projector.generations.database import connect
from services.projector.generations.errors import FenceError
from services.projector.generations.generations import create_generation, migrate, view_checksums
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Build
from tests.support.recorded.histories import History, plain_turn
from tests.support.worlds.projector import PARTITIONS, World, key_of, random_records, settings_of

TOPIC = THREAD_EVENTS.name


@pytest.fixture
async def world(fresh_database: str) -> AsyncIterator[World]:
    await migrate(fresh_database)
    connection = await asyncpg.connect(fresh_database)
    world = World(fresh_database, connection)
    for number in range(12):
        await world.append_history(plain_turn(History(key_of(number))))
    yield world
    await connection.close()


async def _scratch(world: World) -> Generation:
    connection = await connect(world.dsn, settings_of(world.dsn))
    try:
        async with connection.transaction():
            return await create_generation(connection, await world.client.cluster_id(), "scratch")
    finally:
        await connection.close()


async def _ends(world: World) -> dict[TopicPartition, int]:
    return await world.client.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])


def _build(world: World, generation: Generation, owner: str = "test", **options: Any) -> Build:
    changed = options.pop("settings", {})
    settings = settings_of(world.dsn, **changed)
    store = PostgresStore(world.dsn, settings, generation)
    return Build(world.broker.connect(owner), store, settings, owner=owner, **options)


async def _stored(world: World, generation: Generation) -> tuple[dict[int, int], dict[int, int]]:
    positions = await world.connection.fetch(f'select "partition", next_offset from {generation.schema}.positions')
    events = await world.connection.fetch(f'select "partition", count(*) from {generation.schema}.events group by 1')
    return {row[0]: row[1] for row in positions if row[1]}, {row[0]: row[1] for row in events}


async def test_it_stops_exactly_where_it_is_told_to_and_goes_on_from_there(world: World) -> None:
    ends = await _ends(world)
    whole = await _scratch(world)
    build = _build(world, whole)
    await build.open()
    await build.read_to(ends)
    assert build.positions() == ends
    await build.close()

    stepwise = await _scratch(world)
    build = _build(world, stepwise, settings={"projector_batch_records_max": 7})
    await build.open()
    for part in (1, 2, 5, 6, 7):
        targets = {tp: end * part // 7 for tp, end in ends.items()}
        await build.read_to(targets)
        assert build.positions() == targets
        expected = {tp.partition: end for tp, end in targets.items() if end}
        assert await _stored(world, stepwise) == (expected, expected)
    await build.close()
    assert await view_checksums(world.connection, stepwise.schema) == await view_checksums(
        world.connection, whole.schema
    )


async def test_parts_of_a_generation_are_built_beside_each_other_and_after_each_other(world: World) -> None:
    ends = await _ends(world)
    generation = await _scratch(world)
    for numbers in ([0, 2], [1, 3]):
        part = {tp: end for tp, end in ends.items() if tp.partition in numbers}
        build = _build(world, generation, partitions=numbers)
        await build.open()
        await build.read_to(part)
        assert build.positions() == part
        await build.close()
    again = _build(world, generation)
    await again.open()
    assert again.positions() == ends  # nothing is left to read
    await again.close()
    stored = {tp.partition: end for tp, end in ends.items() if end}
    assert await _stored(world, generation) == (stored, stored)


async def test_what_is_left_out_leaves_no_rows(world: World) -> None:
    ends = await _ends(world)
    wanted = key_of(4)
    generation = await _scratch(world)
    build = _build(world, generation, only=lambda incoming: incoming.key == wanted.to_bytes())
    await build.open()
    await build.read_to(ends)
    assert build.positions() == ends
    await build.close()
    rows = await world.connection.fetch(f"select distinct tenant, thread from {generation.schema}.events")
    assert [tuple(row) for row in rows] == [(wanted.tenant, wanted.thread)]


async def test_whoever_builds_the_same_generation_later_takes_it_over(world: World) -> None:
    ends = await _ends(world)
    generation = await _scratch(world)
    first, second = _build(world, generation), _build(world, generation, "second")
    await first.open()
    await second.open()
    with pytest.raises(FenceError):
        await first.read_to(ends)
    await second.read_to(ends)
    await first.close()
    await second.close()


async def test_a_rate_holds_it_back(world: World) -> None:
    ends = await _ends(world)
    generation = await _scratch(world)
    build = _build(world, generation, records_per_second=100)
    await build.open()
    started = asyncio.get_running_loop().time()
    await build.read_to(ends)
    seconds = asyncio.get_running_loop().time() - started
    await build.close()
    assert seconds >= (sum(ends.values()) - 100) / 100
    assert (await _stored(world, generation))[1] == {tp.partition: end for tp, end in ends.items() if end}


async def test_the_same_rows_whatever_the_batches_the_workers_and_the_ends_in_between(world: World) -> None:
    """Of a long history in which anything happens, with records in between that nobody can read."""
    for record in random_records(11, threads=24, moves=80):
        partition = record.partition if record.key is None else world.client.partition_for(record.key, PARTITIONS)
        outgoing = Outgoing(record.key or b"", record.value, record.headers, record.timestamp_ms)
        await world.client.appender.append(TOPIC, partition, [outgoing])
    ends = await _ends(world)
    sums = []
    for batch_records_max, workers, crashes in ((5_000, 1, 0), (1, 4, 0), (97, 2, 6), (13, 3, 9)):
        generation = await _scratch(world)
        for _ in range(crashes):
            await _crashed(world, generation, ends, batch_records_max, workers)
        for numbers in (list(range(PARTITIONS))[worker::workers] for worker in range(workers)):
            part = {tp: end for tp, end in ends.items() if tp.partition in numbers}
            settings = {"projector_batch_records_max": batch_records_max, "projector_states_max": batch_records_max}
            build = _build(world, generation, partitions=numbers, settings=settings)
            await build.open()
            await build.read_to(part)
            await build.close()
        sums.append(await view_checksums(world.connection, generation.schema))
    assert [one == sums[0] for one in sums] == [True] * 4, [
        {name: (sums[0][name], one[name]) for name in one if one[name] != sums[0][name]} for one in sums
    ]
    assert sums[0]["events"][0] + sums[0]["dead_letters"][0] >= sum(ends.values())


async def _crashed(
    world: World, generation: Generation, ends: dict[TopicPartition, int], batch_records_max: int, workers: int
) -> None:
    """Builds that run beside each other and are cut off in the midst of what they do."""
    rng = random.Random(batch_records_max)

    async def build_some(numbers: list[int]) -> None:
        settings = {"projector_batch_records_max": batch_records_max}
        build = _build(world, generation, f"worker-{numbers[0]}", partitions=numbers, settings=settings)
        try:
            await build.open()
            await build.read_to({tp: end for tp, end in ends.items() if tp.partition in numbers})
        finally:
            await build.close()

    tasks = [asyncio.create_task(build_some(list(range(PARTITIONS))[worker::workers])) for worker in range(workers)]
    await asyncio.sleep(0.1 + 0.3 * rng.random())
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
