"""The fixtures themselves: everything else in this folder stands on them."""

import asyncpg
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from services.cli.local.embedded import Running
from tests.support.processes.services import KAFKA_VERSION


async def test_the_shared_broker_answers(kafka_bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        assert await admin.describe_cluster()
    finally:
        await admin.close()


@pytest.mark.kafka
async def test_an_own_broker_is_another_one(kafka_bootstrap: str, own_kafka: Running) -> None:
    assert own_kafka.address != kafka_bootstrap
    assert KAFKA_VERSION in own_kafka.version


async def test_each_test_gets_its_own_database(postgres_dsn: str, fresh_database: str) -> None:
    connection = await asyncpg.connect(fresh_database)
    try:
        assert (await connection.fetchval("SELECT current_database()")).startswith("test_")
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.close()
