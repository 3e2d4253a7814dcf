"""A topic that is given more partitions, on a real broker: what runs goes on, and nothing starts or is built on it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.new_partitions import NewPartitions

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing
from services.chassis.log_partitions import OtherPartitionsError
from services.cli.database import migrate_all
from services.cli.local.embedded import Running
from services.projector.generations.generations import drop_views
from services.projector.rebuilding.rebuild import rebuild
from tests.support.recorded.histories import History, plain_turn
from tests.support.worlds.projector import until
from tests.support.worlds.verification import PARTITIONS, VerifyPlace, new_log, verify_place

TOPIC = THREAD_EVENTS.name
MORE = PARTITIONS + 4
SERVICES = ("ingest", "runtime", "tool-executor", "projector", "rollups")
SECONDS_MAX = 120

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]  # a dozen processes


@pytest_asyncio.fixture(loop_scope="session")
async def place(own_kafka: Running, fresh_database: str) -> AsyncIterator[VerifyPlace]:
    async with verify_place(fresh_database, own_kafka.address, {}) as found:
        yield found


async def _give_partitions(place: VerifyPlace) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=place.settings.kafka_bootstrap_servers)
    await admin.start()
    try:
        await admin.create_partitions({TOPIC: NewPartitions(MORE)})
    finally:
        await admin.close()
    async with asyncio.timeout(SECONDS_MAX):
        while await _found(place) != MORE:  # noqa: ASYNC110  # the event is the broker's
            await asyncio.sleep(0.1)


async def _found(place: VerifyPlace) -> int:
    log = await KafkaLog.open_to_read(place.settings, "look")
    try:
        return await log.partition_count(TOPIC)
    finally:
        await log.close()


def _history(number: int) -> History:
    return plain_turn(History(ThreadKey(TenantId("acme"), ThreadId(f"thread-{number}"))))


async def _run(place: VerifyPlace, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.cli", *arguments),
        env={
            **os.environ,
            "THREADLOG_POSTGRES_DSN": place.settings.postgres_dsn,
            "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": place.settings.kafka_bootstrap_servers,
            "THREADLOG_INGEST_AUTH": "dev",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    ending = asyncio.create_task(process.communicate())
    await asyncio.wait([ending], timeout=SECONDS_MAX)
    if process.returncode is None:
        process.kill()
    return process.returncode or 0, (await ending)[1].decode()


async def test_a_topic_that_is_given_more_partitions(place: VerifyPlace) -> None:
    await migrate_all(place.settings)
    for number in range(6):
        await place.append_history(_history(number))
    await place.project()
    settings, dsn = place.settings, place.settings.postgres_dsn

    at_once = asyncio.Semaphore(3)

    async def run(*arguments: str) -> tuple[int, str]:
        async with at_once:
            return await _run(place, *arguments)

    async def in_turn(*commands: tuple[str, ...]) -> list[tuple[int, str]]:
        """Two at once would be told that another is running."""
        return [await run(*command) for command in commands]

    async def shown() -> int:
        return int(await place.connection.fetchval("select sum(next_offset) from views.positions"))

    before = await shown()
    async with place.projecting():
        await _give_partitions(place)
        another = [made for number in range(6, 12) for made in _history(number).encoded]
        for number in range(6, 12):  # by who has counted the partitions before
            await place.append_history(_history(number))
        await until(shown, lambda seen: seen == before + len(another), 60)
        *ended, of_commands = await asyncio.gather(
            *[run("services", "run", name) for name in SERVICES],
            in_turn(
                ("rebuild", "--no-compare"), ("rebuild", "--new-log"), ("generations", "use", "1"), ("verify", "--all")
            ),
        )
        ended += of_commands
    refused = f"has {MORE} partitions, and had {PARTITIONS}"
    as_new = ended.pop(len(SERVICES) + 1)
    for status, said in ended:
        assert status != 0 and refused in said and "docs/operations.md" in said and "Traceback" not in said, said
    assert [status for status, _ in ended[: len(SERVICES)]] == [2] * len(SERVICES)
    assert as_new[0] == 1 and "is the log that the live views were built from" in as_new[1]

    await drop_views(dsn, settings)
    log = await KafkaLog.open(settings, "later")
    try:
        with pytest.raises(OtherPartitionsError, match=refused):
            await rebuild(log, dsn, settings, lambda _: None)
        status, said = await _run(place, "services", "run", "projector")
        assert status == 2 and refused in said
    finally:
        await log.close()
    assert await place.connection.fetchval("select count(*) from threadlog.generations") == 0


async def test_a_topic_that_is_made_anew_with_another_number_of_partitions(place: VerifyPlace) -> None:
    await migrate_all(place.settings)
    await place.append_history(_history(0))
    await place.project()
    await new_log(place.settings.kafka_bootstrap_servers, place.settings, MORE)
    status, said = await _run(place, "rebuild")
    assert status == 1 and f"has {MORE} partitions, and had {PARTITIONS}" in said and "--new-log" in said
    log = await KafkaLog.open(place.settings, "new")
    try:
        for number in range(6):
            history = _history(number)
            key = history.key.to_bytes()
            records = [Outgoing(key, made.value, made.headers) for made in history.encoded]
            await log.appender.append(TOPIC, log.partition_for(key, MORE), records)
    finally:
        await log.close()
    assert (await _run(place, "rebuild", "--new-log"))[0] == 0
    assert (await _run(place, "rebuild"))[0] == 0
    query = "select count(*), (select count(*) from views.dead_letters) from views.threads"
    assert tuple(await place.connection.fetchrow(query)) == (6, 0)
