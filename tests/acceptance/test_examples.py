"""The programs in `examples/`, each as a process of its own, against a real system."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.client.sse import JsonObject
from tests.acceptance.test_kill import applied, follow
from tests.support.processes.services import database
from tests.support.processes.system import System, system

SCRIPT = r"""
rules:
  - match: {last_user: "^run (?P<command>.+)", steps: 0}
    calls:
      - {tool: shell, args: {command: "{{command}}"}}
  - match: {last_user: "^order (?P<article>.+)", steps: 0}
    calls:
      - {tool: place_order, args: {article: "{{article}}"}}
  - match: {last_user: "^ask", steps: 0}
    calls:
      - {tool: ask_customer, args: {question: "Which size?"}}
  - match: always
    text: Done.
"""
TOOLS = f"""
sandbox: {{enforcement: "off"}}
builtin: [shell]
mcp:
  orders: {{command: {sys.executable}, args: [-m, examples.tool_server], env: {{PYTHONPATH: {Path.cwd()}}}}}
tools:
  place_order: {{effect: idempotent}}
client_tools:
  ask_customer:
    input_schema: {{type: object, properties: {{question: {{type: string}}}}, required: [question]}}
"""
SECONDS_MAX = 60


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("examples")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools=TOOLS) as found,
    ):
        yield found


async def printed(name: str, *arguments: str) -> str:
    """What the example prints. It has to end by itself, with status 0."""
    command = (sys.executable, "-m", f"examples.{name}", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(SECONDS_MAX):
        out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


async def test_an_input_is_submitted_and_followed(running: System) -> None:
    shown = await printed("submit_and_follow", "hello", "--url", running.url)
    kinds = [line.split()[1] for line in shown.splitlines() if line[:3].strip().isdecimal()]
    assert kinds == [
        *("thread.created", "input.submitted", "turn.started", "step.started", "step.finished", "turn.ended"),
    ]
    assert "Done." in shown


async def test_a_backend_decides_about_calls(running: System) -> None:
    config: JsonObject = {"approval": "always", "permission_profile": "full"}
    async with running.client() as client:
        wanted = (await client.create_thread(text="run echo fine", config=config)).thread
        unwanted = (await client.create_thread(text="run rm -rf important", config=config)).thread
        shown = await printed("approve_from_backend", "--deny", "rm ", "--decisions", "2", "--url", running.url)
        facts = await follow(client, wanted, until="turn.ended")
        assert applied(facts, "tool_call.finished")[0]["outcome"] == "succeeded"
        facts = await follow(client, unwanted, until="turn.ended")
        (denied,) = applied(facts, "tool_call.denied")
    assert (denied["by"], denied["reason"]) == ("user:approval-backend", "the arguments contain 'rm '")
    assert f"{wanted} 1.1.0 shell" in shown and "denied" in shown


async def test_a_tool_server_is_called_with_its_key(running: System) -> None:
    finished: list[JsonObject] = []
    async with running.client() as client, asyncio.timeout(SECONDS_MAX):
        while not finished:  # calls are denied until the executor has started the tool server
            thread = (await client.create_thread(text="order socks")).thread
            facts = await follow(client, thread, until="turn.ended")
            finished = applied(facts, "tool_call.finished")
            assert finished or "There is no tool" in str(applied(facts, "tool_call.denied"))
    assert [each["outcome"] for each in finished] == ["succeeded"]
    assert "order-1: socks" in str(finished)


async def test_a_backend_runs_a_client_tool(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="ask the customer")).thread
        shown = await printed("client_tool", thread, "--url", running.url)
        facts = await follow(client, thread, until="turn.ended")
    (finished,) = applied(facts, "tool_call.finished")
    assert "large, please (Which size?)" in str(finished["result"])
    assert shown.startswith("1.1.0: ")


async def test_a_consumer_counts_effects(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="hello")).thread
    kafka = running.environment["THREADLOG_KAFKA_BOOTSTRAP_SERVERS"]
    shown = await printed("effects_consumer", "--kafka", kafka, "--thread", thread)
    assert shown.startswith(f"dev/{thread}: ") and "'turn.ended': 1" in shown
