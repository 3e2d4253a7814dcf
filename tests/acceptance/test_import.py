"""Sessions of both tools, imported into running services: once, whoever dies meanwhile, and gone on with."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest

from services.cli.embedded import Running
from services.client.client import ThreadlogClient
from services.client.sse import Fact, JsonObject
from services.importer.sessions import ReadLimits, dry_run
from services.importer.walk import find_files
from tests.support.services import database
from tests.support.sessions.made import write_codex
from tests.support.system import System, system
from tests.support.waiting import PATIENCE_SECONDS

SESSIONS = Path("tests/support/sessions")
SCRIPT = r"""
rules:
  - match: {last_user: "^go on", steps: 0}
    text: gone on
"""


@pytest.fixture(scope="module")
async def running(
    own_kafka: Running, postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("import")
    environment = {"THREADLOG_IMPORT_LEASE_SECONDS": "2", "THREADLOG_IMPORT_POLL_SECONDS": "0.5"}
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder, kafka=own_kafka.address, postgres=dsn, script=SCRIPT, tools="builtin: []", environment=environment
        ) as found,
    ):
        yield found


async def threadlog(running: System, *arguments: str) -> tuple[int, list[JsonObject]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **running.environment},
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]


async def imported(running: System, tool: str, path: Path, tenant: str) -> list[JsonObject]:
    code, lines = await threadlog(running, "import", tool, str(path), "--url", running.url, "--tenant", tenant)
    assert code == 0, lines
    return lines


def threads_of(lines: list[JsonObject]) -> list[JsonObject]:
    found = lines[-1]["imported"]
    assert lines[-1]["kind"] == "report" and isinstance(found, list)
    return [thread for thread in found if isinstance(thread, dict)]


def reports_of(lines: list[JsonObject]) -> list[JsonObject]:
    return [{name: line[name] for name in line if name not in {"kind", "imported"}} for line in lines[:-1]]


def _data(page: JsonObject) -> list[JsonObject]:
    found = page["data"]
    assert isinstance(found, list)
    return [each for each in found if isinstance(each, dict)]


@pytest.mark.parametrize("tool", ["claude-code", "codex"])
async def test_it_reports_what_a_dry_run_does_and_importing_again_appends_nothing(running: System, tool: str) -> None:
    folder = SESSIONS / tool.partition("-")[0]
    first = await imported(running, tool, folder, "twice")
    dry = [read.to_json() for read in dry_run(find_files([folder], tool), tool, ReadLimits())]  # type: ignore[arg-type]  # a tool
    assert [{**report, "notes": None} for report in reports_of(first)] == [{**report, "notes": None} for report in dry]
    assert any(thread["created"] for thread in threads_of(first))
    assert not any("not_fitting" in thread for thread in threads_of(first))
    again = await imported(running, tool, folder, "twice")
    assert sum(int(str(thread["appended"])) for thread in threads_of(again)) == 0
    assert {thread["thread"] for thread in threads_of(again)} == {thread["thread"] for thread in threads_of(first)}


async def go_on(client: ThreadlogClient, thread: str) -> str:
    """What the model says to one more input."""
    said = ""
    after = int(str((await client.thread(thread))["seq"]))
    await client.submit(thread, "go on", idempotency_key="go-on")
    async with aclosing(client.follow(thread, after)) as facts:
        async for fact in facts:
            if isinstance(fact, Fact) and fact.kind == "step.finished":
                said = json.dumps(fact.data["items"])
            if isinstance(fact, Fact) and fact.kind == "turn.ended":
                assert fact.data["outcome"] == "completed"
                break
    return said


async def test_a_killed_worker_leaves_a_passive_thread_that_the_next_one_finishes(running: System) -> None:
    folder = running.folder / "long"
    folder.mkdir()
    whole = folder / "rollout-long.jsonl"
    write_codex(whole, turns=600)
    importing = asyncio.ensure_future(imported(running, "codex", whole, "killed"))
    async with running.client(tenant="killed") as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until_it_has_turns(client)
        for worker in workers(running):
            worker.send_signal(signal.SIGKILL)
        thread = str(_data(await client.threads())[0]["thread"])
        before = await client.thread(thread)
        assert before["status"] == "importing"
        lines = await importing
        assert threads_of(lines)[0]["thread"] == thread
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.thread(thread))["status"] == "importing":  # noqa: ASYNC110  # the views follow the log
                await asyncio.sleep(0.02)
        after = await client.thread(thread)
        assert (after["status"], after["last_turn"]) == ("active", 600)
        turns = _data(await client.turns(thread, limit=500))
        assert {turn["outcome"] for turn in turns} == {"completed"}
        assert "gone on" in await go_on(client, thread)
    again = await imported(running, "codex", whole, "killed")
    assert sum(int(str(thread["appended"])) for thread in threads_of(again)) == 0


async def until_it_has_turns(client: ThreadlogClient) -> None:
    while not await has_turns(client):  # noqa: ASYNC110  # the API has no way to wait for it
        await asyncio.sleep(0.02)


async def has_turns(client: ThreadlogClient) -> bool:
    threads = _data(await client.threads())
    return bool(threads) and bool(_data(await client.turns(str(threads[0]["thread"]), limit=1)))


def workers(running: System) -> list[psutil.Process]:
    """The import workers of this system's ingest."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "services.ingest.import_worker" in " ".join(child.cmdline())
        and child.environ().get("THREADLOG_INGEST_PORT") == running.environment["THREADLOG_INGEST_PORT"]
    ]


async def test_sessions_are_gone_on_with_and_everything_verifies(running: System) -> None:
    for tool in ("claude-code", "codex"):
        lines = await imported(running, tool, SESSIONS / tool.partition("-")[0], "going-on")
        async with running.client(tenant="going-on") as client:
            created = [thread for thread in threads_of(lines) if thread["created"]]
            for thread in created[:3]:
                assert "gone on" in await go_on(client, str(thread["thread"]))
    code, _ = await threadlog(running, "verify", "--all")
    assert code == 0
