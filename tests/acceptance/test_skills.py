"""Skills on real processes: pushed by the command, loaded by a model, restored where an executor never saw them."""

import asyncio
import io
import json
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from services.client.client import JsonObject, ThreadlogClient
from services.client.sse import Fact
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.simulated.waiting import PATIENCE_SECONDS

SCRIPT = r"""
rules:
  - match: {last_user: "^load (?P<name>\\S+)", steps: 0}
    calls:
      - {tool: load_skill, args: {name: "{{name}}"}}
  - match: {last_user: "^read", steps: 0}
    calls:
      - {tool: shell, args: {command: "cat .skills/review/*/SKILL.md && ls -l .skills/review/*/SKILL.md"}}
  - match: always
    text: "It says: {{result}}"
"""


@pytest.fixture(scope="module")
async def running(
    kafka_bootstrap: str, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("skills")
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder, kafka=kafka_bootstrap, postgres=dsn, script=SCRIPT, tools="builtin: [shell, load_skill]"
        ) as found,
    ):
        yield found


async def threadlog(running: System, *words: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "services.cli", *words, "--url", running.url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=Path.cwd())
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def pushed(running: System, folder: Path) -> JsonObject:
    write(folder)
    entry: JsonObject = json.loads(await threadlog(running, "skills", "push", str(folder)))
    return entry


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    text = "---\nname: review\nversion: 1.0.0\ndescription: Reviewing changes.\n---\n# How to review\nLook twice.\n"
    (folder / "SKILL.md").write_text(text)


async def turn(client: ThreadlogClient, thread: str, number: int) -> list[Fact]:
    facts: list[Fact] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.follow(thread)) as events:
        async for event in events:
            if isinstance(event, Fact):
                facts.append(event)
                if event.kind == "turn.ended" and event.body["data"]["turn"] == number:
                    break
    return facts


def result_of(facts: list[Fact]) -> JsonObject:
    return next(fact.body["data"] for fact in reversed(facts) if fact.kind == "tool_call.finished")


def text_of(facts: list[Fact]) -> str:
    return "".join(part["text"] for part in result_of(facts)["result"]["content"])


async def test_a_skill_is_pushed_loaded_and_restored(running: System, tmp_path: Path) -> None:
    entry = await pushed(running, tmp_path / "review")
    assert await pushed(running, tmp_path / "review") == entry
    assert (entry["name"], entry["version"], entry["description"]) == ("review", "1.0.0", "Reviewing changes.")
    async with running.client() as client:
        created = await client.create_thread(text="load review", config={"skills": [entry]})
        facts = await turn(client, created.thread, 1)
        kinds = [fact.kind for fact in facts]
        assert kinds.index("skill.loaded") < kinds.index("tool_call.dispatched")
        assert "Look twice." in text_of(facts)
        listed = await threadlog(running, "skills", "list", created.thread)
        assert listed == "loaded  review 1.0.0  Reviewing changes.\n"
        running.supervisor.kill("tool-executor")
        shutil.rmtree(running.folder / "workspaces" / "dev" / created.thread)
        await running.supervisor.wait_ready("tool-executor")
        await client.submit(created.thread, "read it")
        facts = await turn(client, created.thread, 2)
        assert "Look twice." in text_of(facts)
        assert "-r--r--r--" in text_of(facts)


async def test_what_leads_outside_is_refused_and_nothing_is_held_up(running: System) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("SKILL.md"))
        evil = tarfile.TarInfo("../../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
    async with running.client() as client:
        stored = await client.put_artifact(out.getvalue(), "application/x-tar")
        entry = {"name": "review", "version": "6.6.6", "sha256": stored["sha256"]}
        created = await client.create_thread(text="load review", config={"skills": [entry]})
        facts = await turn(client, created.thread, 1)
        assert result_of(facts)["outcome"] == "failed"
        assert "'../../evil' is no plain relative path inside the folder" in text_of(facts)
        await client.submit(created.thread, "read it")
        facts = await turn(client, created.thread, 2)
        assert "No such file" in text_of(facts)
        assert not list((running.folder / "workspaces").rglob("evil"))


async def test_an_unknown_skill_and_a_thread_without_any(running: System) -> None:
    async with running.client() as client:
        stored = await client.put_artifact(b"no tar", "application/x-tar")
        entry = {"name": "other", "version": "1", "sha256": stored["sha256"]}
        created = await client.create_thread(text="load review", config={"skills": [entry]})
        denied = next(fact for fact in await turn(client, created.thread, 1) if fact.kind == "tool_call.denied")
        assert denied.body["data"]["reason"] == "There is no skill named 'review'. The skills are: other."
        without = await client.create_thread(text="load review")
        denied = next(fact for fact in await turn(client, without.thread, 1) if fact.kind == "tool_call.denied")
        assert "There is no tool named 'load_skill'" in denied.body["data"]["reason"]
