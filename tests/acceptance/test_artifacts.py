"""Whole outputs, file history and the care of the store, on real processes."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.chassis.artifacts.store import sha256_of
from services.cli.local.embedded import Running
from services.client.client import ThreadlogClient
from services.client.sse import Fact, JsonObject
from tests.acceptance.test_kill import applied, follow
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

SCRIPT = r"""
rules:
  - match: {last_user: "^long", steps: 0}
    calls: [{tool: shell, args: {command: "seq 1 40000"}}]
  - match: {last_result: '"sha256": "(?P<sha>[0-9a-f]{64})"', steps: 1}
    calls: [{tool: read_artifact, args: {sha256: "{{sha}}", offset: 100000, bytes: 24}}]
  - match: {last_user: "^write (?P<path>\\S+) (?P<content>.+)", steps: 0}
    calls: [{tool: write_file, args: {path: "{{path}}", content: "{{content}}"}}]
  - match: always
    text: Done.
"""
TOOLS = """
sandbox: {enforcement: "off"}
"""
CONFIG: JsonObject = {"permission_profile": "full", "approval": "never"}
NUMBERS = "".join(f"{number}\n" for number in range(1, 40_001)).encode()


@pytest.fixture(scope="module")
async def running(
    own_kafka: Running, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("artifacts")
    async with (
        database(postgres_dsn) as dsn,
        system(folder, kafka=own_kafka.address, postgres=dsn, script=SCRIPT, tools=TOOLS) as found,
    ):
        yield found


def workspace(running: System, thread: str) -> Path:
    return running.folder / "workspaces" / "dev" / thread


async def turn(running: System, thread: str | None, text: str) -> tuple[str, list[Any]]:
    """The thread, and what happened in the turn."""
    async with running.client() as client:
        if thread is None:
            thread = (await client.create_thread(text=text, config=CONFIG)).thread
            return thread, await follow(client, thread, until="turn.ended")
        asked = await client.submit(thread, text, wait_applied=True)
        return thread, await next_turn(client, thread, asked.body)


async def next_turn(client: ThreadlogClient, thread: str, asked: JsonObject) -> list[Any]:
    """What happened since this was asked for, up to the end of the turn."""
    facts: list[Fact] = []
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(client.follow(thread, after=int(str(asked["seq"])) - 1)) as events,
    ):
        async for event in events:
            if isinstance(event, Fact):
                facts.append(event)
                if event.kind == "turn.ended" and event.body["effect"] == "applied":
                    break
    return facts


async def restored(running: System, thread: str, number: int) -> tuple[httpx2.Response, list[Any]]:
    async with httpx2.AsyncClient(base_url=running.url) as http, running.client() as client:
        answer = await http.post(f"/v1/threads/{thread}/turns/{number}/restore", json={})
        if answer.status_code != 200:
            return answer, []
        return answer, await next_turn(client, thread, answer.json())


async def threadlog(running: System, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        *arguments,
        env={**os.environ, **running.environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_whole_output_is_kept_and_the_model_reads_on(running: System) -> None:
    _, facts = await turn(running, None, "long please")
    first, second = applied(facts, "tool_call.finished")
    [named] = first["artifacts"]
    assert (named["sha256"], named["size"]) == (sha256_of(NUMBERS), len(NUMBERS))
    assert "bytes cut" in first["result"]["content"][0]["text"]
    assert second["result"]["content"][0]["text"] == NUMBERS[100_000:100_024].decode()
    async with httpx2.AsyncClient(base_url=running.url) as http:
        whole = await http.get(f"/v1/artifacts/{named['sha256']}")
        assert whole.content == NUMBERS
        part = await http.get(f"/v1/artifacts/{named['sha256']}", headers={"range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, NUMBERS[5:10])
        foreign = await http.get(f"/v1/artifacts/{named['sha256']}", headers={"x-threadlog-tenant": "other"})
        assert foreign.status_code == 404


async def test_what_turns_did_to_files_is_shown_and_put_back(running: System) -> None:
    thread, _ = await turn(running, None, "write notes/a.txt one")
    await turn(running, thread, "write notes/a.txt two")
    path = workspace(running, thread) / "notes" / "a.txt"
    assert path.read_text() == "two"
    async with httpx2.AsyncClient(base_url=running.url) as http:
        diff = await http.get(f"/v1/threads/{thread}/turns/2/diff", headers={"accept": "text/x-diff"})
    assert diff.text.splitlines()[-4:] == [
        "-one",
        "\\ No newline at end of file",
        "+two",
        "\\ No newline at end of file",
    ]

    answer, _ = await restored(running, thread, 1)
    assert (answer.status_code, [one["path"] for one in answer.json()["files"]]) == (409, ["notes/a.txt"])

    _, facts = await restored(running, thread, 2)
    assert path.read_text() == "one"
    assert [data["by"] for data in applied(facts, "tool_call.approved")] == ["user:dev"]
    assert applied(facts, "step.started")[0]["model"] == "requested"
    [finished] = applied(facts, "tool_call.finished")
    assert [(one["path"], one["after"]) for one in finished["changes"]] == [("notes/a.txt", sha256_of(b"one"))]
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"

    _, facts = await restored(running, thread, 1)
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"
    assert not path.exists()

    _, facts = await restored(running, thread, 4)  # the restore of turn 1 is a turn like any other
    assert applied(facts, "turn.ended")[0]["outcome"] == "completed"
    assert path.read_text() == "one"


async def test_a_restore_over_a_file_that_somebody_changed_is_refused_with_a_list(running: System) -> None:
    thread, _ = await turn(running, None, "write a.txt one")
    path = workspace(running, thread) / "a.txt"
    path.write_text("by hand")
    _, facts = await restored(running, thread, 1)
    [finished] = applied(facts, "tool_call.finished")
    assert finished["outcome"] == "failed"
    assert f"a.txt has the sha256 {sha256_of(b'by hand')}" in finished["result"]["content"][0]["text"]
    [ended] = applied(facts, "turn.ended")
    assert (ended["outcome"], ended["reason"]) == ("failed", "the requested call did not succeed: failed")
    assert path.read_text() == "by hand"


async def test_the_store_is_checked_and_what_nothing_names_is_collected(running: System) -> None:
    thread, _ = await turn(running, None, "write a.txt precious")
    precious, orphan = sha256_of(b"precious"), sha256_of(b"orphan")
    async with httpx2.AsyncClient(base_url=running.url) as http:
        assert (await http.put(f"/v1/artifacts/{orphan}", content=b"orphan")).status_code == 201
        assert (await threadlog(running, "artifacts", "check"))[0] == 0
        for expected in ("1 set aside", "1 with 6 bytes deleted"):
            status, said = await threadlog(running, "artifacts", "collect", "--grace-seconds", "0")
            assert (status, expected in said) == (0, True), said
        assert (await http.get(f"/v1/artifacts/{orphan}")).status_code == 404
        assert (await http.get(f"/v1/artifacts/{precious}")).content == b"precious"
    assert (await threadlog(running, "artifacts", "check"))[0] == 0

    stored = running.folder / "artifacts" / "dev" / precious[:2] / precious
    stored.write_bytes(b"altered!")
    status, said = await threadlog(running, "artifacts", "check")
    assert status == 1
    assert f"{precious}  altered" in said and thread in said
    stored.unlink()
    status, said = await threadlog(running, "artifacts", "check", "--tenant", "dev", "--no-read")
    assert (status, f"{precious}  missing" in said) == (1, True)
    async with httpx2.AsyncClient(base_url=running.url) as http:
        assert (await http.put(f"/v1/artifacts/{precious}", content=b"precious")).status_code == 201
    assert (await threadlog(running, "artifacts", "check"))[0] == 0
