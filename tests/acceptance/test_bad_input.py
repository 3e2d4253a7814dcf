"""Bad records on the topic, nonsense from models, and commands that come too late or not from whom they should, on the
whole system: a clear message, and nothing stalls.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from httpx2 import Response

from schemas.codec import encode
from schemas.config import Config
from schemas.envelope import Headers
from schemas.events import InputSubmitted, TextItem, ThreadCreated
from schemas.ids import TenantId, ThreadId, ThreadKey, derive
from schemas.topics import THREAD_EVENTS, THREAD_EVENTS_DLQ
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import Outgoing, TopicPartition
from services.client.client import ThreadlogClient
from services.client.sse import Fact
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

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
  - match: {last_user: "^list", steps: 0}
    calls: [{tool: shell, args: {command: "echo proposed"}}]
  - match: {last_user: "^book", steps: 0}
    calls: [{tool: book_seat, args: {seat: 4A}}]
  - match: {last_user: "^pay", steps: 0}
    calls: [{tool: pay, args: {}}]
  - match: {last_result: "(?s).+"}
    text: "I was told: {{result}}"
"""
TOOLS = """
builtin: [read_file, shell]
client_tools:
  book_seat:
    description: Books a seat.
    input_schema: {type: object, properties: {seat: {type: string}}, required: [seat]}
  pay:
    description: Pays; nobody answers.
    input_schema: {type: object, properties: {}}
    timeout_seconds: 0.1
"""
QUEUE_MAX = 40
ENVIRONMENT = {
    "THREADLOG_INGEST_QUEUE_INPUTS_MAX": str(QUEUE_MAX),
    # So that a call of `pay`, which nobody answers, is soon unknown.
    "THREADLOG_RUNTIME_CLIENT_TOOL_SECONDS": "1",
    "THREADLOG_RUNTIME_DEADLINE_GRACE_SECONDS": "1",
}


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("bad")
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools=TOOLS, environment=ENVIRONMENT
        ) as found,
    ):
        async with found.client() as client, asyncio.timeout(PATIENCE_SECONDS):
            await until_offered(client, "book_seat")
        yield found


async def until_offered(client: ThreadlogClient, tool: str) -> None:
    """Until the runtime has read of the tool: a refusal names those that there are."""
    while True:
        facts = await turn(client, "unknown tool please")
        if tool in str(data_of(facts, "tool_call.denied")[0]["reason"]):
            return


@pytest.fixture(scope="module")
async def log(running: System) -> AsyncIterator[KafkaLog]:
    opened = await KafkaLog.open(running.settings, "test")
    yield opened
    await opened.close()


async def turn(client: ThreadlogClient, text: str) -> list[Fact]:
    thread = (await client.create_thread(text=text)).thread
    return await turn_of(client, thread)


async def turn_of(client: ThreadlogClient, thread: str) -> list[Fact]:
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread, until_turn_end=True)) as events:
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
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
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
    async with asyncio.timeout(PATIENCE_SECONDS):
        while found < 5:
            found += sum(len(records) for _, records in await reader.poll(500))
    await reader.close()


async def dead_letters(dsn: str, partition: int) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
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
        ended = (await turn_of(client, thread))[-1]
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
        shown = await client.get(f"/v1/threads/{thread}", {"at_least": ended.seq})
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
        created = []
        async with aclosing(client.follow(thread)) as events:  # the page of events may not have come so far
            async for event in events:
                if isinstance(event, Fact) and event.kind == "thread.created":
                    created.append(event.effect)
                if isinstance(event, Fact) and event.seq == accepted.body["seq"]:
                    break
        assert created == ["applied", "superseded"]


# Commands


async def until(client: ThreadlogClient, thread: str, kind: str) -> Fact:
    """The thread's next record of this kind that took effect."""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
        async for event in events:
            if isinstance(event, Fact) and event.kind == kind and event.applied:
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def send(
    running: System, path: str, body: object = None, *, tenant: str = "dev", subject: str = "ann"
) -> Response:
    headers = {"x-threadlog-tenant": tenant, "x-threadlog-subject": subject}
    async with httpx2.AsyncClient(base_url=running.url, timeout=30) as http:
        return await http.post(f"/v1/threads/{path}", json={} if body is None else body, headers=headers)


def refusal(answer: Response, status: int, slug: str) -> dict[str, Any]:
    """The problem document, which has to be this one."""
    body: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["status"], body["type"].rpartition("/")[2]) == (status, status, slug), body
    assert body["title"] and body["detail"]
    return body


async def test_decisions_about_what_is_not_there_or_not_theirs_or_over(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="list please", config={"approval": "always"})).thread
        asked = await until(client, thread, "tool_call.approval_requested")
        body = {"decision": "approve", "call_hash": asked.data["call_hash"]}
        refusal(await send(running, f"{thread}/tool-calls/1.1.7/decision", body), 404, "not-found")
        foreign = await send(running, f"{thread}/tool-calls/1.1.0/decision", body, tenant="other")
        refusal(foreign, 404, "thread-not-found")
        other = await send(running, f"{thread}/tool-calls/1.1.0/decision", {**body, "call_hash": "a" * 64})
        assert refusal(other, 409, "not-applied")["call"]["call_hash"] == asked.data["call_hash"]
        unfit = {**body, "args": {"command": 3}}
        problem = refusal(
            await send(running, f"{thread}/tool-calls/1.1.0/decision", unfit), 422, "arguments-do-not-fit"
        )
        assert problem["errors"][0]["place"] == "args.command"
        edited = await send(
            running, f"{thread}/tool-calls/1.1.0/decision", {**body, "args": {"command": "echo edited"}}
        )
        assert edited.status_code == 200, edited.text
        late = await send(running, f"{thread}/tool-calls/1.1.0/decision", {**body, "decision": "deny"}, subject="bob")
        decided = refusal(late, 409, "not-applied")["decided"]
        assert (decided["by"], decided["decision"]) == ("user:ann", "edited")
        facts = await turn_of(client, thread)
        assert "edited" in json.dumps(data_of(facts, "tool_call.finished")[0]["result"])
        settled = refusal(await send(running, f"{thread}/tool-calls/1.1.0/decision", body), 409, "not-applied")
        assert settled["decided"]["by"] == "user:ann"


async def test_results_that_are_too_large_or_no_json_or_others(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="book please", config={"approval": "never"})).thread
        await until(client, thread, "tool_call.dispatched")
        path = f"{thread}/tool-calls/1.1.0/result"
        refusal(await send(running, path, {"outcome": "succeeded", "result": "x" * 40_000}), 413, "too-large")
        async with httpx2.AsyncClient(base_url=running.url) as http:
            headers = {"content-type": "application/json"}
            broken = await http.post(f"/v1/threads/{path}", content=b'{"outcome": "succeeded", "re', headers=headers)
            refusal(broken, 400, "malformed-json")
        refusal(await send(running, path, {"outcome": "succeeded", "result": "\u0000"}), 422, "unstorable")
        refusal(await send(running, path, {"outcome": "succeeded"}, tenant="other"), 404, "thread-not-found")
        body = {"outcome": "succeeded", "result": {"seat": "4A"}}
        first, again = await send(running, path, body), await send(running, path, body, subject="bob")
        assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
        recorded = refusal(await send(running, path, {"outcome": "failed"}), 409, "not-applied")["recorded"]
        assert (recorded["outcome"], recorded["result"]) == ("succeeded", {"seat": "4A"})
        facts = await turn_of(client, thread)
        assert len(data_of(facts, "turn.ended")) == 1


async def test_resolutions_too_late_or_about_another_attempt(running: System) -> None:
    """That who lacks the scope cannot resolve needs API keys: see the integration tests of ingest."""
    async with running.client() as client:
        thread = (await client.create_thread(text="pay please", config={"approval": "never"})).thread
        lost = await until(client, thread, "tool_call.lost")
        [listed] = (await client.get("/v1/unknown-calls", {"thread": thread, "at_least": lost.seq}))["data"]  # type: ignore[misc]
        assert isinstance(listed, dict)
        assert (listed["call"], listed["attempt"], listed["turn_status"]) == ("1.1.0", 1, "open")
        path = f"{thread}/tool-calls/1.1.0/resolution"
        again = {"decision": "again", "attempt": 1, "note": "no payment there"}
        refusal(await send(running, path, {"decision": "again", "attempt": 1}), 422, "invalid-request")
        refusal(await send(running, path, again, tenant="other"), 404, "thread-not-found")
        refusal(await send(running, f"{thread}/tool-calls/1.1.3/resolution", again), 404, "not-found")
        wrong = refusal(await send(running, path, {**again, "attempt": 2}), 409, "not-applied")
        assert (wrong["reason"], wrong["call"]["attempt"]) == ("attempt 1 is the last", 1)
        assert (await send(running, f"{thread}/turns/1/cancel")).status_code == 200
        await until(client, thread, "turn.ended")
        over = refusal(await send(running, path, again), 409, "not-applied")
        assert over["reason"] == "turn 1 is over: the call cannot run again in it"
        failed = {"decision": "failed", "attempt": 1, "note": "the bank says no", "result": "declined"}
        assert (await send(running, path, failed)).status_code == 200
        late = refusal(
            await send(running, path, {**failed, "decision": "abandoned", "result": None}), 409, "not-applied"
        )
        assert late["decided"]["reason"] == "the bank says no"


async def test_a_turn_that_is_over_cannot_be_steered_or_cancelled(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="hello")).thread
        ended = (await turn_of(client, thread))[-1]
        steering = {"text": "left", "mode": "steer", "expected_turn": 1}
        steered = refusal(await send(running, f"{thread}/inputs", steering), 409, "not-applied")
        assert steered["reason"] == "turn 1 is not open"
        cancelled = refusal(await send(running, f"{thread}/turns/1/cancel"), 409, "not-applied")
        assert cancelled["reason"] == "turn 1 has ended"
        interrupting = {"text": "stop", "mode": "interrupt", "expected_turn": 1}
        refusal(await send(running, f"{thread}/inputs", interrupting), 422, "invalid-request")
        [taken] = (await client.get(f"/v1/threads/{thread}/inputs", {"at_least": ended.seq}))["data"]  # type: ignore[misc]
        assert isinstance(taken, dict)
        withdrawn = refusal(await send(running, f"{thread}/inputs/{taken['input']}/withdraw"), 409, "not-applied")
        assert (withdrawn["input_status"], withdrawn["turn"]) == ("taken", 1)
        assert (await client.thread(thread))["last_turn"] == 1


async def test_a_flood_of_inputs_stops_at_the_limit_and_none_is_lost(running: System) -> None:
    async with running.client() as client:
        # Until the result of its call comes, this turn is open.
        thread = (await client.create_thread(text="book please", config={"approval": "never"})).thread
        await until(client, thread, "tool_call.dispatched")
        busy = {"text": "now", "mode": "reject"}
        assert refusal(await send(running, f"{thread}/inputs", busy), 409, "not-applied")["reason"] == "a turn is open"
        path = f"{thread}/inputs"
        answers = await asyncio.gather(*[send(running, path, {"text": f"hello {n}"}) for n in range(3 * QUEUE_MAX)])
        taken = [answer.json()["input"] for answer in answers if answer.status_code == 202]
        for answer in answers:
            if answer.status_code != 202:
                refusal(answer, 429, "queue-full")
                assert int(answer.headers["retry-after"]) > 0
        assert len(taken) == QUEUE_MAX
        assert (await send(running, f"{thread}/turns/1/cancel")).status_code == 200
        closed = await send(running, f"{thread}/close?wait=applied")
        assert closed.status_code == 200
        refusal(await send(running, path, {"text": "more"}), 409, "thread-closing")
        at_least = "{partition}:{offset}".format(**closed.json()["position"])
        shown = (await client.get(f"/v1/threads/{thread}/inputs", {"at_least": at_least, "limit": 500}))["data"]
        assert isinstance(shown, list)

        assert set(taken) <= {row["input"] for row in shown}  # type: ignore[index, call-overload]
        await until(client, thread, "thread.closed")


def test_the_logs_of_the_services_are_json(running: System) -> None:
    for path in Path(running.folder, "logs").glob("*.log"):
        for line in path.read_text().splitlines():
            assert "event" in json.loads(line), (path.name, line)
