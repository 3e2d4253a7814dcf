"""Ephemeral threads on real processes: turns, tools, people and crashes as in any thread, and no history."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from services.client.client import RefusedError, ThreadlogClient
from services.client.sse import Fact
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

SCRIPT = r"""
rules:
  - match: {last_user: "^think", steps: 0}
    text: I have thought about it.
    delta_seconds: 0.3
  - match: {last_user: "^run (?P<command>.+)", steps: 0}
    calls:
      - {tool: shell, args: {command: "{{command}}"}}
  - match: {last_user: "^ask", steps: 0}
    calls:
      - {tool: shell, args: {command: "true"}}
  - match: always
    text: Done.
"""
TOOLS = """
builtin: [shell]
tools:
  shell: {effect: unsafe}
"""
LIFE_SECONDS = 20


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    environment = {
        "THREADLOG_EXECUTOR_LEASE_SECONDS": "3",
        "THREADLOG_RUNTIME_EPHEMERAL_SECONDS": str(LIFE_SECONDS),
    }
    folder = tmp_path_factory.mktemp("ephemeral")
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools=TOOLS, environment=environment
        ) as found,
    ):
        yield found


async def follow(client: ThreadlogClient, thread: str, until: str, times: int = 1) -> list[Fact]:
    facts: list[Fact] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
        async for event in events:
            if isinstance(event, Fact):
                facts.append(event)
                times -= event.kind == until and event.body["effect"] == "applied"
                if times == 0:
                    break
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
    return facts


async def test_a_turn_with_a_tool_and_a_second_one(running: System) -> None:
    async with running.client() as client:
        created = await client.create_thread(text="run echo hello", ephemeral=True)
        assert created.thread.startswith("e-")
        await follow(client, created.thread, "turn.ended")
        shown = await client.get(f"/v1/threads/{created.thread}")
        assert (shown["status"], shown["last_turn"], shown["last_outcome"]) == ("active", 1, "completed")
        await client.submit(created.thread, "and again")
        facts = await follow(client, created.thread, "turn.ended", 2)
        assert facts[-1].body["data"]["outcome"] == "completed"
        listed = await client.get("/v1/threads")
        assert created.thread not in [thread["thread"] for thread in listed["data"]]
        with pytest.raises(RefusedError) as refused:
            await client.get(f"/v1/threads/{created.thread}/turns")
        assert refused.value.status == 404


async def test_its_runtime_and_its_executor_are_killed(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="think hard", ephemeral=True)).thread
        await follow(client, thread, "step.started")
        running.supervisor.kill("runtime")
        facts = await follow(client, thread, "turn.ended")
        assert [fact.kind for fact in facts].count("turn.recovered") == 1
        await running.supervisor.wait_ready("runtime")
        busy = (await client.create_thread(text="run sleep 60", ephemeral=True)).thread
        await follow(client, busy, "tool_call.started")
        running.supervisor.kill("tool-executor")
        await follow(client, busy, "tool_call.lost")
        await client.cancel(busy, 1)
        facts = await follow(client, busy, "turn.ended")
        assert facts[-1].body["data"]["unknown_calls"] == ["1.1.0"]
        await running.supervisor.wait_ready("tool-executor")


async def test_people_decide_and_ingest_is_killed(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="ask", config={"approval": "always"}, ephemeral=True)).thread
        facts = await follow(client, thread, "tool_call.approval_requested")
        running.supervisor.kill("ingest")
        await running.supervisor.wait_ready("ingest")
        call_hash = facts[-1].body["data"]["call_hash"]
        body = {"decision": "approve", "call_hash": call_hash}
        await client.command(f"/v1/threads/{thread}/tool-calls/1.1.0/decision", body)
        facts = await follow(client, thread, "turn.ended")
        assert facts[-1].body["data"]["outcome"] == "completed"


async def test_another_tenant_sees_none_of_it(running: System) -> None:
    async with running.client() as client, running.client(tenant="other") as other:
        thread = (await client.create_thread(text="hello", ephemeral=True)).thread
        with pytest.raises(RefusedError) as refused:
            await other.get(f"/v1/threads/{thread}")
        assert refused.value.status == 404
        with pytest.raises(RefusedError) as refused:
            await other.submit(thread, "me too")
        assert refused.value.status == 404


async def test_its_time_is_over(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="run sleep 300", ephemeral=True)).thread
        facts = await follow(client, thread, "thread.closed")
        asked = next(fact for fact in facts if fact.kind == "thread.close_requested")
        assert "lives" in asked.body["data"]["reason"]
        with pytest.raises(RefusedError):
            await client.submit(thread, "too late", wait_applied=True)
        assert (await client.get(f"/v1/threads/{thread}"))["status"] == "closed"
