"""The chassis on a real Postgres and a real socket; its log is tested in tests/contract."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client import CollectorRegistry

from services.chassis.kafka import kafka_log as kafka
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.kafka.topic_admin import TopicSpec
from services.chassis.kafka.topics import kafka_topics
from services.chassis.log.port import LogError, LogUnavailableError, Outgoing, TopicPartition
from services.chassis.postgres.connections import open_pool
from services.chassis.postgres.migrations import MigrationError, migrate
from services.chassis.postgres.sql_files import SqlFiles
from services.chassis.process.probes import Probes
from services.chassis.settings import Settings
from services.cli.local.embedded import embedded_broker

CHASSIS_SQL = SqlFiles(Path(__file__).parents[2] / "services" / "chassis" / "postgres" / "sql")


async def test_migrations_are_applied_once_also_when_several_try(fresh_database: str, tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("create table first (n int); insert into first values (1);")

    async def run() -> tuple[str, ...]:
        connection = await asyncpg.connect(fresh_database)
        try:
            return await migrate(connection, "owner", tmp_path)
        finally:
            await connection.close()

    ran = await asyncio.gather(*[run() for _ in range(4)])
    assert sorted(ran) == [(), (), (), ("0001_first",)]
    (tmp_path / "0002_broken.sql").write_text("create table second (n int); select nonsense;")
    with pytest.raises(asyncpg.PostgresError):
        await run()
    (tmp_path / "0002_broken.sql").write_text("create table second (n int);")
    assert await run() == ("0002_broken",)
    (tmp_path / "0001_first.sql").write_text("create table first (n bigint);")
    with pytest.raises(MigrationError):
        await run()
    connection = await asyncpg.connect(fresh_database)
    try:
        for name in CHASSIS_SQL:
            if name.startswith("migrations_"):
                await connection.prepare(CHASSIS_SQL[name])
        assert await connection.fetchval("select count(*) from first") == 1
    finally:
        await connection.close()


async def test_the_log_lets_go_of_readers_that_are_closed(kafka_bootstrap: str) -> None:
    log = await KafkaLog.open(Settings(kafka_bootstrap_servers=kafka_bootstrap), "test")
    try:
        for _ in range(5):
            await (await log.reader()).close()
        kept = await log.reader()
        assert log._readers == [kept]
    finally:
        await log.close()


@pytest.mark.kafka
async def test_a_log_that_is_opened_to_read_makes_its_producer_with_the_first_append(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, topic = Settings(kafka_bootstrap_servers=kafka_bootstrap), f"read-{uuid.uuid4().hex}"
    async with kafka_topics(settings) as topics:
        await topics.create([TopicSpec(topic, 2, 1, {})])
    made = []

    class Counted(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(kafka, "AIOKafkaProducer", Counted)
    tps = [TopicPartition(topic, number) for number in range(2)]
    log = await KafkaLog.open_to_read(settings, "test")
    try:
        assert await log.partition_count(topic) == 2
        assert await log.end_offsets(tps) == dict.fromkeys(tps, 0)
        reader = await log.reader(dict.fromkeys(tps, 0))
        assert await reader.poll(10) == []
        with pytest.raises(LogError, match="threadlog topics apply"):
            await log.partition_count("nothing")
        assert made == []
        appends = [log.appender.append(topic, number % 2, [Outgoing(b"t/a", b"x")]) for number in range(4)]
        await asyncio.gather(*appends)
        await log.appender.append(topic, 0, [Outgoing(b"t/a", b"y")])
        assert len(made) == 1
        assert await log.end_offsets(tps) == {tps[0]: 3, tps[1]: 2}
    finally:
        await log.close()


async def test_a_log_that_cannot_be_opened_to_read_says_whom_it_asked() -> None:
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka_start_timeout_seconds=0.1)
    with pytest.raises(LogUnavailableError, match=r"connect to 127\.0\.0\.1:1"):
        await KafkaLog.open_to_read(settings, "test")


async def test_a_broker_without_producer_ids_is_not_read_as_one_that_has_them(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as broker:
        settings = Settings(kafka_bootstrap_servers=broker.address)
        with pytest.raises(LogError, match="THREADLOG_KAFKA_IDEMPOTENCE=false"):
            await KafkaLog.open_to_read(settings, "test")
        await (await KafkaLog.open_to_read(settings.model_copy(update={"kafka_idempotence": False}), "test")).close()


async def test_jsonb_passes_as_bytes(fresh_database: str) -> None:
    pool = await open_pool(
        fresh_database,
        application_name="test",
        size_min=0,
        size_max=2,
        command_timeout_seconds=10,
        connect_timeout_seconds=5,
    )
    async with pool:
        await pool.execute("create table documents (n int, body jsonb)")
        await pool.execute("insert into documents values (1, $1)", b'{"a": [1, 2.50]}')
        async with pool.acquire() as connection:
            await connection.copy_records_to_table("documents", records=[(2, b'"text"'), (3, None)])
        rows = await pool.fetch("select body from documents order by n")
    assert [row["body"] for row in rows] == [b'{"a": [1, 2.50]}', b'"text"', None]


async def test_a_pool_opens_without_a_database() -> None:
    pool = await open_pool(
        "postgresql://nobody@127.0.0.1:1/nothing",
        application_name="test",
        size_min=0,
        size_max=1,
        command_timeout_seconds=1,
        connect_timeout_seconds=1,
    )
    with pytest.raises(OSError):
        await pool.fetch("select 1")
    await pool.close()


async def test_probes_answer_over_http() -> None:
    probes = await Probes.start("127.0.0.1", 0, CollectorRegistry(), not_ready=lambda: "not yet")
    reader, writer = await asyncio.open_connection("127.0.0.1", probes.port)
    writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith(b"\r\n\r\nnot yet\n")
    writer.close()
    await writer.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", probes.port)
    writer.write(b"x" * 20_000 + b"\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await probes.close()
