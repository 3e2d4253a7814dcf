"""SIGKILL of each service in the middle of a turn, on real processes: what was acknowledged goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from services.client.client import ThreadlogClient
from services.client.sse import Fact, JsonObject
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
  - match: always
    text: Done.
"""
TOOLS = """
builtin: [shell, read_file]
tools:
  shell: {{effect: {effect}, max_attempts: 3}}
"""
LEASE_SECONDS = 3
UNCONFINED: JsonObject = {"permission_profile": "full"}
"""The commands write to a file outside their workspace, so that the test sees what happened."""


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("kill")
    environment = {"THREADLOG_EXECUTOR_LEASE_SECONDS": str(LEASE_SECONDS)}
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder,
            kafka=kafka_bootstrap,
            postgres=dsn,
            script=SCRIPT,
            tools=TOOLS.format(effect="idempotent"),
            environment=environment,
        ) as found,
    ):
        yield found


async def follow(client: ThreadlogClient, thread: str, *, until: str, attempts: int = 1) -> list[Fact]:
    """The thread's facts up to the one of this kind that took effect for the n-th time; gap-free, each once."""
    facts: list[Fact] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
        async for event in events:
            if not isinstance(event, Fact):
                continue
            facts.append(event)
            attempts -= event.kind == until and event.body["effect"] == "applied"
            if attempts == 0:
                break
    assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
    return facts


def applied(facts: list[Fact], kind: str) -> list[dict[str, Any]]:
    return [fact.body["data"] for fact in facts if fact.kind == kind and fact.body["effect"] == "applied"]  # type: ignore[misc]


async def test_runtime_killed_while_a_model_answers(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="think hard")).thread
        await follow(client, thread, until="step.started")
        running.supervisor.kill("runtime")
        facts = await follow(client, thread, until="turn.ended")
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"
    assert len(applied(facts, "step.finished")) == 1
    assert [data["attempt"] for data in applied(facts, "step.started")] == [1, 2]
    assert len(applied(facts, "turn.recovered")) == 1


async def test_executor_killed_while_a_repeatable_tool_runs(running: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    async with running.client() as client:
        thread = (await client.create_thread(text=f"run echo once >> {ledger}; sleep 2", config=UNCONFINED)).thread
        await follow(client, thread, until="tool_call.started")
        await wait_for_lines(ledger, 1)
        running.supervisor.kill("tool-executor")
        facts = await follow(client, thread, until="turn.ended")
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"
    assert len(applied(facts, "tool_call.lost")) == 1
    assert [data["attempt"] for data in applied(facts, "tool_call.dispatched")] == [1, 2]
    assert len(ledger.read_text().splitlines()) == 2


async def test_executor_killed_while_an_unsafe_tool_runs(running: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    await running.supervisor.stop("tool-executor")
    running.write_tools(TOOLS.format(effect="unsafe"))
    running.supervisor.start("tool-executor")
    await running.supervisor.wait_ready("tool-executor")
    async with running.client() as client:
        await until_unsafe(client)
        thread = (await client.create_thread(text=f"run echo once >> {ledger}; sleep 30", config=UNCONFINED)).thread
        await follow(client, thread, until="tool_call.started")
        await wait_for_lines(ledger, 1)
        running.supervisor.kill("tool-executor")
        facts = await follow(client, thread, until="tool_call.lost")
        await client.cancel(thread, 1)
        facts = await follow(client, thread, until="turn.ended")
    ended = applied(facts, "turn.ended")[0]
    assert (ended["outcome"], ended["unknown_calls"]) == ("aborted", ["1.1.0"])
    assert len(ledger.read_text().splitlines()) == 1


async def test_ingest_killed_while_a_client_follows(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="think again")).thread
        following = asyncio.create_task(follow(client, thread, until="turn.ended", attempts=2))
        await follow(client, thread, until="turn.started")
        running.supervisor.kill("ingest")
        await client.submit(thread, "and now something else")
        facts = await following
    assert [data["outcome"] for data in applied(facts, "turn.ended")] == ["completed", "completed"]
    assert len(applied(facts, "input.submitted")) == 2


async def test_projector_killed_while_turns_run(running: System) -> None:
    async with running.client() as client:
        threads = [(await client.create_thread(text="hello")).thread for _ in range(5)]
        running.supervisor.kill("projector")
        for thread in threads:
            await follow(client, thread, until="turn.ended")
        await running.supervisor.wait_ready("projector")
        for thread in threads:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await client.thread(thread)).get("last_outcome") != "completed":  # noqa: ASYNC110  # a view
                    await asyncio.sleep(0.1)


def has_lines(path: Path, count: int) -> bool:
    return path.exists() and len(path.read_text().splitlines()) >= count


async def wait_for_lines(path: Path, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not has_lines(path, count):  # noqa: ASYNC110  # a foreign process writes it
            await asyncio.sleep(0.02)


async def until_unsafe(client: ThreadlogClient) -> None:
    """Until the runtime has seen that the tool is unsafe now."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            thread = (await client.create_thread(text="run true")).thread
            facts = await follow(client, thread, until="turn.ended")
            if applied(facts, "tool_call.dispatched")[0]["effect"] == "unsafe":
                return
