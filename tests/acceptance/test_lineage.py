"""Forks, rewinds and summaries on real processes, and the runtime killed while a summary is being written."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import pytest

from services.cli.local.embedded import Running
from services.client.client import Accepted, ThreadlogClient
from services.client.sse import JsonObject
from tests.acceptance.test_kill import applied, follow
from tests.support.processes.services import database
from tests.support.processes.system import System, system

SCRIPT = r"""
rules:
  - match: {summary: true}
    delay_seconds: 2
    text: "So far: {{input}}"
  - match: {last_user: "^use a tool", steps: 0}
    calls:
      - {tool: echo, args: {text: "as told"}}
  - match: {last_user: "^large", steps: 0}
    text: It is large now.
    usage: {input_tokens: 5000, output_tokens: 10}
  - match: always
    text: "{{input}}, done."
"""


@pytest.fixture(scope="module")
async def running(
    own_kafka: Running, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("lineage")
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder,
            kafka=own_kafka.address,
            postgres=dsn,
            script=SCRIPT,
            tools="builtin: [echo]",
            environment={"THREADLOG_RUNTIME_CONTEXT_TOKENS": "1000"},
        ) as found,
    ):
        yield found


async def command(client: ThreadlogClient, thread: str, what: str, body: JsonObject) -> Accepted:
    return await client.command(f"/v1/threads/{thread}/{what}", body, None, wait_applied=True)


async def shown(client: ThreadlogClient, thread: str, at: int) -> tuple[list[str], str]:
    """What a model is shown there, and its hash."""
    found = await client.get(f"/v1/threads/{thread}/state", {"at": at})
    context: JsonObject = found["context"]  # type: ignore[assignment]  # as the API describes it
    items: list[JsonObject] = context["items"]  # type: ignore[assignment]
    return [_said(item["content"]) for item in items], str(context["hash"])  # type: ignore[arg-type]


def _said(content: JsonObject) -> str:
    match content["kind"]:
        case "message":
            return str(content["content"][0]["text"])  # type: ignore[index,call-overload]  # one text
        case "summary":
            return str(content["text"])
        case kind:
            return f"{kind} {str(content['call']).rpartition('/')[2]}"


async def turn(client: ThreadlogClient, thread: str, text: str | None, number: int) -> list[str]:
    """What the model was shown for the turn's last step, which the runtime's own hash has to confirm."""
    if text is not None:
        await client.submit(thread, text)
    facts = await follow(client, thread, until="turn.ended", attempts=number)
    started = [fact for fact in facts if fact.kind == "step.started" and fact.body["effect"] == "applied"][-1]
    said, context_hash = await shown(client, thread, started.seq - 1)
    assert context_hash == started.body["data"]["context"]["hash"]  # type: ignore[index,call-overload]  # of a step
    return said


async def verified(running: System, *what: str) -> JsonObject:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "verify", *what, "--json"),
        env={**os.environ, **running.environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    report: JsonObject = json.loads(output)
    return report


async def test_forks_go_on_from_what_their_parents_showed_and_all_of_it_can_be_verified(running: System) -> None:
    async with running.client() as client:
        parent = (await client.create_thread(text="use a tool", config={"approval": "never"})).thread
        told = ["use a tool", "tool_call 1.1.0", "tool_result 1.1.0"]
        assert await turn(client, parent, None, 1) == told
        told += ["use a tool, done."]
        assert await turn(client, parent, "second", 2) == [*told, "second"]
        made = await command(client, parent, "fork", {"at": {"turn": 1}, "input": {"text": "use a tool"}})
        fork = made.thread
        assert await turn(client, fork, None, 1) == [*told, *told[:3]]
        again = await command(client, fork, "fork", {"input": {"text": "third"}})
        assert await turn(client, again.thread, None, 1) == [*told, *told, "third"]
        await command(client, parent, "rewind", {"to_turn": 1})
        assert await turn(client, parent, "fourth", 3) == [*told, "fourth"]
        late = await command(client, parent, "fork", {"at": {"turn": 2}, "input": {"text": "fifth"}})
        assert await turn(client, late.thread, None, 1) == [*told, "second", "second, done.", "fifth"]
        await client.close_thread(parent, wait_applied=True)
        closed = await command(client, parent, "fork", {"input": {"text": "sixth"}})
        assert await turn(client, closed.thread, None, 1) == [*told, "fourth", "fourth, done.", "sixth"]
    for thread in (fork, again.thread, late.thread, closed.thread):
        report = await verified(running, "--thread", f"dev/{thread}")
        assert report["ok"], report
    report = await verified(running, "--all")
    assert report["ok"], report


async def test_runtime_killed_while_a_summary_is_written(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="first")).thread
        await turn(client, thread, None, 1)
        fork = (await command(client, thread, "fork", {})).thread
        asked = await command(client, fork, "compact", {})
        assert asked.body["effect"] == "applied"
        await client.submit(fork, "second")
        running.supervisor.kill("runtime")
        facts = await follow(client, fork, until="turn.ended")
        kinds = [fact.kind for fact in facts if fact.body["effect"] == "applied"]
        assert kinds.count("context.compacted") == 1
        assert kinds.index("context.compacted") < kinds.index("turn.started")
        assert await turn(client, fork, "third", 2) == ["So far: first", "second", "second, done.", "third"]
        await command(client, fork, "rewind", {"to_turn": 0})
        assert await turn(client, fork, "fourth", 3) == ["So far: first", "fourth"]


async def test_a_large_context_is_summed_up_by_itself(running: System) -> None:
    async with running.client() as client:
        thread = (await client.create_thread(text="large")).thread
        await turn(client, thread, None, 1)
        said = await turn(client, thread, "go on", 2)
        assert said == ["So far: large", "go on"]
        facts = await follow(client, thread, until="turn.ended", attempts=2)
        [requested] = applied(facts, "context.compaction_requested")
        assert (requested["base"], requested["turn"]) == (0, 2)
        assert await turn(client, thread, "and on", 3) == ["So far: large", "go on", "go on, done.", "and on"]
    report = await verified(running, "--thread", f"dev/{thread}")
    assert report["ok"], report
