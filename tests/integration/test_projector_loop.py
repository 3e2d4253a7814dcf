"""The projector's loop on a real database and the simulated log, and on Kafka."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from schemas.topics import THREAD_EVENTS_DLQ, TOPICS
from services.chassis.clock import SystemClock
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import apply, topic_specs
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.consumer_groups import PROJECTOR_GROUP
from services.chassis.log.port import Incoming, Outgoing, TopicPartition
from services.cli.local.embedded import Running
from services.projector.generations.errors import OtherLogError
from services.projector.generations.generations import (
    TABLES,
    NotMigratedError,
    OtherVersionError,
    drop_views,
    ensure_live,
    migrate,
    view_checksums,
)
from services.projector.generations.postgres_store import PostgresStores
from services.projector.loop import Projector
from services.projector.metrics import ProjectorMetrics
from services.projector.rebuilding.rebuild import rebuild
from tests.support.recorded.histories import (
    History,
    plain_turn,
)
from tests.support.worlds.projector import PARTITIONS, TOPIC, World, key_of, settings_of, until


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


async def test_what_is_appended_is_shown_soon(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(0))))
        await world.all_shown()
        loop = asyncio.get_running_loop()
        delays = []
        for number in range(1, 6):
            await asyncio.sleep(0.1)
            begin = loop.time()
            await world.append_history(History(key_of(number)).idle())
            await world.all_shown()
            delays.append(loop.time() - begin)
        assert min(delays) < 0.1, delays
    committed = world.broker.committed(PROJECTOR_GROUP)
    assert sum(committed.values()) <= world.appended


async def test_projectors_share_partitions_and_take_over_from_the_dead(world: World) -> None:
    rng = random.Random(7)
    histories = [plain_turn(History(key_of(number))) for number in range(20)]
    async with world.projector("1"):
        for history in histories[:7]:
            await world.append_history(history)
        async with world.projector("2"):
            for history in histories[7:14]:
                await world.append_history(history)
                await asyncio.sleep(rng.random() / 20)
            await until(
                lambda: world.connection.fetch("select distinct owner from views.positions"),
                lambda rows: len(rows) == 2,
            )
        for history in histories[14:]:
            await world.append_history(history)
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_unreadable_records_reach_their_topic(world: World) -> None:
    async with world.projector():
        partition = await world.append(key_of(1), Outgoing(b"nobody", b"x", (("a", b"b"),), 5))
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    (letter,) = world.broker.records(THREAD_EVENTS_DLQ.name, partition)
    assert (letter.key, letter.value) == (b"nobody", b"x")
    assert dict(letter.headers)["threadlog_offset"] == b"0"
    assert await world.connection.fetchval("select count(*) from views.dead_letters") == 1


async def test_a_database_that_is_away_is_waited_for(world: World, postgres_dsn: str) -> None:
    name = urlsplit(world.dsn).path[1:]
    admin = await asyncpg.connect(postgres_dsn)
    try:
        async with world.projector():
            await world.append_history(plain_turn(History(key_of(1))))
            await world.all_shown()
            await admin.execute(f'alter database "{name}" allow_connections false')
            await world.connection.close()
            await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
            for number in range(2, 6):
                await world.append_history(plain_turn(History(key_of(number))))
                await asyncio.sleep(0.2)
            await admin.execute(f'alter database "{name}" allow_connections true')
            world.connection = await asyncpg.connect(world.dsn)
            await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
    finally:
        await admin.execute(f'alter database "{name}" allow_connections true')
        await admin.close()
        await world.connection.close()


async def test_a_database_that_went_back_is_filled_again(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        async with world.connection.transaction():
            await world.connection.execute(
                "update views_g1.positions set next_offset = 0; "
                + "; ".join(f"truncate views_g1.{name}" for name in TABLES if name != "positions")
            )
        await world.append_history(plain_turn(History(key_of(2))))
        await world.append_history(History(key_of(1)))
        await world.append(key_of(1), Outgoing(b"nobody", b"x", (), 5))
        await until(world.shown, lambda shown: shown >= world.appended - 12)
        for number in range(3, 9):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
    assert await world.sums() == await world.rebuilt_sums()


async def test_views_that_were_dropped_come_back_the_same(world: World) -> None:
    async with world.projector():
        for number in range(6):
            await world.append_history(plain_turn(History(key_of(number))))
        await world.all_shown()
        before = await view_checksums(world.connection, "views")
        assert await drop_views(world.dsn, settings_of(world.dsn)) == 1
        assert await world.shown() == 0
        await world.append_history(plain_turn(History(key_of(6))))
        await world.all_shown()
        assert await world.sums() == await world.rebuilt_sums()
        await drop_views(world.dsn, settings_of(world.dsn))
    async with world.projector():
        await world.all_shown()
        after = await view_checksums(world.connection, "views")
    assert before.keys() == after.keys() and before["events"][0] + 16 == after["events"][0]


async def test_dropped_views_come_back_without_a_new_record(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        before = await view_checksums(world.connection, "views")
        await drop_views(world.dsn, settings_of(world.dsn))
        await world.all_shown()
        assert await view_checksums(world.connection, "views") == before
        await rebuild(world.broker.connect("rebuild"), world.dsn, settings_of(world.dsn), lambda _: None)
        await until(
            lambda: world.connection.fetchval("select count(*) from views.positions where owner = 'rebuild'"),
            lambda left: left == 0,
        )


async def test_a_projector_claims_again_what_an_outsider_took(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
        await world.connection.execute("update views_g1.positions set owner_epoch = owner_epoch + 1, owner = 'x'")
        await world.append_history(plain_turn(History(key_of(2))))
        await world.all_shown()
    assert await world.connection.fetchval("select count(*) from views.positions where owner = 'x'") == 0


# What a person has to decide


async def test_a_database_without_tables_is_refused(fresh_database: str) -> None:
    with pytest.raises(NotMigratedError, match="threadlog migrate"):
        await ensure_live(fresh_database, settings_of(fresh_database), "cluster")


async def test_views_of_another_cluster_are_refused(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), "another")
    with pytest.raises(OtherLogError, match="another"):
        async with world.projector():
            pass


async def test_views_that_are_beyond_the_end_of_the_log_are_refused(world: World) -> None:
    async with world.projector():
        await world.append_history(plain_turn(History(key_of(1))))
        await world.all_shown()
    await world.connection.execute("update views_g1.positions set next_offset = 1000")
    with pytest.raises(ExceptionGroup) as raised:
        async with world.projector():
            await asyncio.sleep(2)
    assert "offset 1000" in str(raised.value.exceptions[0]) and isinstance(raised.value.exceptions[0], OtherLogError)


async def test_views_of_another_version_are_refused(world: World) -> None:
    await ensure_live(world.dsn, settings_of(world.dsn), await world.client.cluster_id())
    await world.connection.execute("update threadlog.generations set projection_version = 99")
    with pytest.raises(OtherVersionError, match="threadlog rebuild"):
        async with world.projector():
            pass


# On Kafka


@pytest.mark.kafka
async def test_on_kafka_what_is_appended_is_shown_and_a_rebuild_is_the_same(
    database: str, connection: Any, own_kafka: Running
) -> None:
    settings = settings_of(database, kafka_bootstrap_servers=own_kafka.address, topic_partitions=PARTITIONS)
    async with kafka_topics(settings) as topics:
        await apply(topics, topic_specs(TOPICS, PARTITIONS, 1))
    log = await KafkaLog.open(settings, "projector")
    metrics = ProjectorMetrics.register(CollectorRegistry())
    stopping = asyncio.Event()
    try:
        projector = await Projector.start(
            log, PostgresStores(database, settings), settings, SystemClock(), metrics, "one"
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(projector.run(stopping))
            appended = 0
            for number in range(40):
                history = plain_turn(History(key_of(number)))
                key = history.key.to_bytes()
                records = [Outgoing(key, made.value, made.headers) for made in history.encoded]
                await log.appender.append(TOPIC, log.partition_for(key, PARTITIONS), records)
                appended += len(records)
            await log.appender.append(TOPIC, 1, [Outgoing(b"nobody", b"x", (), 5)])

            async def shown() -> Any:
                return await connection.fetchval("select sum(next_offset) from views.positions")

            await until(shown, lambda seen: seen == appended + 1)
            before = await view_checksums(connection, "views")
            new = await rebuild(log, database, settings, lambda _: None)
            assert (new.number, await view_checksums(connection, "views")) == (2, before)
            await log.appender.append(TOPIC, 1, [Outgoing(b"nobody", b"y", (), 5)])
            await until(shown, lambda seen: seen == appended + 2)
            assert await connection.fetchval("select count(*) from views.positions where owner like 'projector-%'") > 0
            stopping.set()
        reader = await log.reader({TopicPartition(THREAD_EVENTS_DLQ.name, 1): 0})
        letters: list[Incoming] = []
        while len({letter.value for letter in letters}) < 2:
            letters += [record for _, found in await reader.poll(1_000) for record in found]
        by_offset = {dict(letter.headers)["threadlog_offset"]: letter.value for letter in letters}  # at least once
        assert sorted(filter(None, by_offset.values())) == [b"x", b"y"]
        await reader.close()
    finally:
        await log.close()
