"""Bad records on the topic and nonsense from models, on the whole system: a clear message, and nothing stalls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import asyncpg
import pytest

from schemas.codec import encode
from schemas.config import Config
from schemas.envelope import Headers
from schemas.events import InputSubmitted, TextItem, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ
from services.chassis.kafka import KafkaLog
from services.chassis.log import Outgoing, TopicPartition
from services.client.client import ThreadlogClient
from services.client.sse import Fact
from tests.support.services import database
from tests.support.system import System, system

SCRIPT = r"""
rules:
  - match: {last_user: "^unknown tool", steps: 0}
    calls: [{tool: no_such_tool, args: {}}]
  - match: {last_user: "^bad arguments", steps: 0}
    calls: [{tool: read_file, args: {pfad: 3}}]
  - match: {last_user: "^bad arguments", steps: 1}
    calls: [{tool: read_file, args: {path: missing.txt}}]
  - match: {last_user: "^fail", steps: 0}
    error: {message: the provider is on fire, retriable: false}
  - match: {last_user: "^hello"}
    text: Hello.
  - match: {last_result: "(?s).+"}
    text: "I was told: {{result}}"
"""
TOOLS = "builtin: [read_file]\n"


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("bad")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools=TOOLS) as found,
    ):
        yield found


@pytest.fixture(scope="module")
async def log(running: System) -> AsyncIterator[KafkaLog]:
    opened = await KafkaLog.open(running.settings, "test")
    yield opened
    await opened.close()


async def turn(client: ThreadlogClient, text: str) -> list[Fact]:
    thread = (await client.create_thread(text=text)).thread
    return await turn_of(client, thread)


async def turn_of(client: ThreadlogClient, thread: str) -> list[Fact]:
    async with asyncio.timeout(30), aclosing(client.follow(thread, until_turn_end=True)) as events:
        return [event async for event in events if isinstance(event, Fact)]


def data_of(facts: list[Fact], kind: str) -> list[dict[str, object]]:
    return [fact.body["data"] for fact in facts if fact.kind == kind]  # type: ignore[misc]


async def test_a_tool_that_does_not_exist_is_told_to_the_model(running: System) -> None:
    async with running.client() as client:
        facts = await turn(client, "unknown tool please")
    denied = data_of(facts, "tool_call.denied")[0]
    assert "no_such_tool" in str(denied["reason"])
    assert "read_file" in str(denied["reason"])
    answer = data_of(facts, "step.finished")[-1]
    assert "no_such_tool" in json.dumps(answer["items"])
    assert data_of(facts, "turn.ended")[0]["outcome"] == "completed"


async def test_arguments_that_do_not_fit_are_told_to_the_model_which_corrects_itself(running: System) -> None:
    async with running.client() as client:
        facts = await turn(client, "bad arguments please")
    assert "pfad" in str(data_of(facts, "tool_call.denied")[0]["reason"])
    assert data_of(facts, "tool_call.finished")[0]["outcome"] == "failed"
    assert data_of(facts, "turn.ended")[0]["outcome"] == "completed"


async def test_a_model_that_fails_for_good_ends_the_turn_with_its_reason(running: System) -> None:
    async with running.client() as client:
        facts = await turn(client, "fail please")
    ended = data_of(facts, "turn.ended")[0]
    assert ended["outcome"] == "failed"
    assert "on fire" in str(ended["reason"])


def of_another_version(headers: Headers) -> Headers:
    return tuple((name, value.replace(b".v1", b".v7") if name == "ce_type" else value) for name, value in headers)


def with_another_hash(headers: Headers) -> Headers:
    return tuple((name, b"0" * 64 if name == "ce_datahash" else value) for name, value in headers)


async def test_foreign_and_broken_records_do_not_stop_a_partition(running: System, log: KafkaLog) -> None:
    """Each kind once, in the partition of a thread that goes on afterwards."""
    async with running.client() as client:
        thread = (await client.create_thread(text="hello")).thread
        await turn_of(client, thread)
        key = ThreadKey(TenantId("dev"), ThreadId(thread))
        partition = log.partition_for(key.to_bytes(), await log.partition_count(THREAD_EVENTS.name))
        good = encode(
            key,
            InputSubmitted(input="late", items=(TextItem(text="hello again"),)),
            source="test",
            actor="service:test",
            time_ms=1,
        )
        ends = await log.end_offsets([TopicPartition(THREAD_EVENTS_DLQ.name, partition)])
        bad = [
            Outgoing(b"no slash", b"{}", ()),
            Outgoing(key.to_bytes(), b"{}", ()),
            Outgoing(key.to_bytes(), b"\xff\xfe", (("ce_id", derive(thread, "x").encode()),)),
            Outgoing(key.to_bytes(), None, good.headers),
            Outgoing(key.to_bytes(), good.value, with_another_hash(good.headers)),
            Outgoing(key.to_bytes(), good.value, of_another_version(good.headers)),
        ]
        await log.appender.append(THREAD_EVENTS.name, partition, bad)
        accepted = await client.submit(thread, "hello once more", wait_applied=True)
        assert accepted.body["effect"] == "applied"
        facts = []
        async with asyncio.timeout(30), aclosing(client.follow(thread)) as events:
            async for event in events:
                if isinstance(event, Fact):
                    facts.append(event)
                    if [fact.kind for fact in facts].count("turn.ended") == 2:
                        break
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
    effects = [fact.body["effect"] for fact in facts]
    assert effects.count("rejected") == 3  # no headers but an id, no value, another hash
    assert effects.count("ignored") == 1
    assert [data["outcome"] for data in data_of(facts, "turn.ended")] == ["completed", "completed"]
    letters = await dead_letters(running.settings.postgres_dsn, partition)
    assert len(letters) == 5, letters
    reader = await log.reader(ends)
    found = 0
    async with asyncio.timeout(20):
        while found < 5:
            found += sum(len(records) for _, records in await reader.poll(500))
    await reader.close()


async def dead_letters(dsn: str, partition: int) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(20):
            while True:
                rows = await connection.fetch(
                    'select reason from views.dead_letters where "partition" = $1 order by "offset"', partition
                )
                if len(rows) >= 5:
                    return [row["reason"] for row in rows]
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def test_a_thread_of_another_tenant_is_not_there(running: System) -> None:
    async with running.client() as client, running.client(tenant="other") as other:
        thread = (await client.create_thread(text="hello")).thread
        await turn_of(client, thread)
        answers = []
        for name in (thread, "never-was"):
            with pytest.raises(Exception, match="404") as refused:
                await other.submit(name, "let me in")
            answers.append(str(refused.value).replace(name, "X"))
        assert answers[0] == answers[1]


async def test_a_command_of_another_tenant_addresses_another_thread(running: System, log: KafkaLog) -> None:
    """Even one that is put on the topic by hand: the key is the isolation."""
    async with running.client() as client:
        thread = (await client.create_thread(text="hello")).thread
        await turn_of(client, thread)
        key = ThreadKey(TenantId("other"), ThreadId(thread))
        partition = log.partition_for(key.to_bytes(), await log.partition_count(THREAD_EVENTS.name))
        forged = encode(
            key,
            InputSubmitted(input="forged", items=(TextItem(text="hello"),)),
            source="test",
            actor="user:test",
            time_ms=1,
            event_id=derive(thread, "forged"),
        )
        await log.appender.append(
            THREAD_EVENTS.name, partition, [Outgoing(key.to_bytes(), forged.value, forged.headers)]
        )
        shown = await client.thread(thread)
        assert shown["last_turn"] == 1


async def test_a_second_creation_is_a_no_op(running: System, log: KafkaLog) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="hello")).thread
        await turn_of(client, thread)
        key = ThreadKey(TenantId("dev"), ThreadId(thread))
        partition = log.partition_for(key.to_bytes(), await log.partition_count(THREAD_EVENTS.name))
        again = encode(
            key,
            ThreadCreated(config=Config(model="another")),
            source="test",
            actor="service:test",
            time_ms=1,
        )
        await log.appender.append(THREAD_EVENTS.name, partition, [Outgoing(key.to_bytes(), again.value, again.headers)])
        accepted = await client.submit(thread, "hello", wait_applied=True)
        assert accepted.body["effect"] == "applied"
        events = await client.get(f"/v1/threads/{thread}/events")
        found = [event for event in events["events"] if "thread.created" in event["type"]]  # type: ignore[index, union-attr]
        assert [event["effect"] for event in found] == ["applied", "superseded"]  # type: ignore[index, call-overload]


def test_the_logs_of_the_services_are_json(running: System) -> None:
    for path in Path(running.folder, "logs").glob("*.log"):
        for line in path.read_text().splitlines():
            assert "event" in json.loads(line), (path.name, line)
