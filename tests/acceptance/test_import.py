"""Sessions of both tools, imported into running services: once, whoever dies meanwhile, and gone on with."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]  # it brings no types
import pytest
import pytest_asyncio
from pydantic import JsonValue

from services.cli.local.embedded import Running
from services.client.client import ThreadlogClient
from services.client.sse import Fact
from services.importer.model import Tool
from services.importer.sessions import ReadLimits, dry_run
from services.importer.source_files import find_files
from tests.support.processes.services import database
from tests.support.processes.system import System, system
from tests.support.sessions.imported_views import came_to, differences, happened_once, records
from tests.support.sessions.importing import data_of, imported, reports_of, threadlog, threads_of
from tests.support.sessions.made import write_claude_branch, write_codex, write_nested_agents
from tests.support.sessions.readme import FOLDER as RECORDED
from tests.support.sessions.readme import needs_sessions
from tests.support.simulated.waiting import PATIENCE_SECONDS

SESSIONS = Path("tests/support/sessions")
FOLDERS = {"claude-code": "claude", "codex": "codex"}
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
    environment = {"THREADLOG_IMPORT_LEASE_SECONDS": "2"}
    async with (
        database(postgres_dsn) as dsn,
        system(
            folder, kafka=own_kafka.address, postgres=dsn, script=SCRIPT, tools="builtin: []", environment=environment
        ) as found,
    ):
        yield found


@pytest_asyncio.fixture
async def views(running: System) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(running.settings.postgres_dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("tool", FOLDERS)
async def test_it_reports_what_a_dry_run_does_and_importing_again_appends_nothing(running: System, tool: Tool) -> None:
    folder = SESSIONS / FOLDERS[tool]
    first = await imported(running, tool, folder, "twice")
    dry = [read.to_json() for read in dry_run(find_files([folder], tool), tool, ReadLimits())]
    assert reports_of(first) == dry
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
                after = fact.seq
                break
    async with asyncio.timeout(30):
        while int(str((await client.thread(thread))["seq"])) < after:  # noqa: ASYNC110  # the views follow the log
            await asyncio.sleep(0.02)
    return said


def halves(source: Path, tool: Tool, folder: Path) -> Path:
    """The sessions as they were when they had half of their records, and neither forks nor sub-agents."""
    folder.mkdir()
    for report in dry_run(find_files([source], tool), tool, ReadLimits()):
        if all(thread.parent is None for thread in report.threads):
            path = Path(report.file)
            lines = path.read_bytes().splitlines(keepends=True)
            (folder / path.name).write_bytes(b"".join(lines[: len(lines) // 2]))
    return folder


@pytest.mark.parametrize("tool", FOLDERS)
async def test_growing_sessions_come_to_what_their_whole_files_give(
    running: System, views: asyncpg.Connection, tmp_path: Path, tool: Tool
) -> None:
    source = SESSIONS / FOLDERS[tool]
    grown, whole = f"grown-{tool}", f"whole-{tool}"
    early = halves(source, tool, tmp_path / "early")
    await imported(running, tool, early, grown)
    await imported(running, tool, source, grown)
    await imported(running, tool, source, whole)
    # A turn that was told again has other numbers, and so have its calls.
    assert differences(await came_to(views, grown), await came_to(views, whole), "call") == []
    await happened_once(views, grown)
    before = await records(views, grown)
    await imported(running, tool, early, grown)
    assert await records(views, grown) == before


def size_of(path: Path) -> int:
    return path.stat().st_size


@needs_sessions
@pytest.mark.parametrize("tool", FOLDERS)
async def test_genuine_snapshots_and_their_last_come_to_the_last(
    running: System, views: asyncpg.Connection, tmp_path: Path, tool: Tool
) -> None:
    grown, whole = f"grown-genuine-{tool}", f"whole-genuine-{tool}"
    source = RECORDED / FOLDERS[tool]
    newest: dict[str, Path] = {}
    for report in dry_run(find_files([source], tool), tool, ReadLimits()):
        path = Path(report.file)
        for thread in report.threads[:1]:
            newest[thread.source_id] = max(newest.get(thread.source_id, path), path, key=size_of)
    early, late = tmp_path / "early", tmp_path / "late"
    for folder in (early, late):
        folder.mkdir()
    for path in sorted(source.iterdir()):
        is_early = path.suffix == ".jsonl" and path not in newest.values()
        shutil.copy(path, early if is_early else late)
    assert any(early.iterdir())
    await imported(running, tool, early, grown)
    await imported(running, tool, late, grown)
    await imported(running, tool, late, whole)
    assert differences(await came_to(views, grown), await came_to(views, whole)) == []
    await happened_once(views, grown)
    before = await records(views, grown)
    await imported(running, tool, early, grown)
    await imported(running, tool, source, grown)
    assert await records(views, grown) == before


async def test_a_branch_that_was_left_between_two_snapshots_counts_once(
    running: System, views: asyncpg.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "branched.jsonl"
    for is_left in (False, True):
        write_claude_branch(path, is_left=is_left)
        await imported(running, "claude-code", path, "branched")
    await imported(running, "claude-code", path, "branched-at-once")
    grown = await came_to(views, "branched")
    assert differences(grown, await came_to(views, "branched-at-once")) == []
    assert sorted(len(thread["turns"]) for thread in grown.threads.values()) == [1, 2]
    assert grown.usage == [("step", 6 * 15, 6 * 3, 6 * 5, 6)]


async def test_forks_and_children_find_their_parents_in_other_imports(
    running: System, views: asyncpg.Connection, tmp_path: Path
) -> None:
    tenant, codex = "families", SESSIONS / "codex"
    waiting = await imported(running, "codex", codex / "0.171_fork-by-reference.jsonl", tenant)
    assert "01a22812-d584-7e83-9719-9c764c7c87ec" in str(reports_of(waiting)[0]["notes"])
    assert threads_of(waiting) == []
    for name in ("interrupt-compact-steer", "subagent-parent", "subagent-child"):
        await imported(running, "codex", codex / f"0.171_{name}.jsonl", tenant)
    for path in write_nested_agents(tmp_path):
        await imported(running, "claude-code", path, tenant)
    found = (await came_to(views, tenant)).threads
    parents = {
        session.rpartition("-")[2]: (*thread["parent"], thread["call"]) if thread["parent"] else None
        for session, thread in found.items()
    }
    nested = "5e550007-0000-4000-8000-000000000000"
    assert parents == {
        "9c764c7c87ec": None,
        "fff19bf6cac8": ("fork", "01a22812-d584-7e83-9719-9c764c7c87ec", None),
        "7dcbf053a27e": None,
        "c45683d7d188": ("child", "01a22812-e73a-7d20-a89b-7dcbf053a27e", "1.1.0"),
        "000000000000": None,
        "000000000000:middle": ("child", nested, "1.1.0"),
        "000000000000:a58020f": ("child", f"{nested}:middle", "1.1.0"),
    }
    shared = [thread for session, thread in found.items() if session.endswith("fff19bf6cac8")]
    assert "Question in the fork." in str(shared[0]["context"])
    assert "Fifth question after compaction." in str(shared[0]["context"])
    assert "Sixth" not in str(shared[0]["context"])
    await healed_after_a_death(running, views, tenant)


async def healed_after_a_death(running: System, views: asyncpg.Connection, tenant: str) -> None:
    """As if the worker had died after it imported the parent, and before it looked for who had waited."""
    of_fork = "tenant = $1 and path like '%fork-by-reference%'"
    waits_for = f"update ingest.import_files set waits_for = $2, outcome = '[]' where {of_fork}"
    await views.execute(waits_for, tenant, "01a22812-d584-7e83-9719-9c764c7c87ec")
    of_parent = "select import from ingest.import_files where tenant = $1 and path like '%interrupt-compact-steer%'"
    await views.execute(f"update ingest.imports set status = 'waiting' where id in ({of_parent})", tenant)
    async with asyncio.timeout(60):
        while await views.fetchval(f"select waits_for from ingest.import_files where {of_fork}", tenant):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    outcome = await views.fetchval(f"select outcome::text from ingest.import_files where {of_fork}", tenant)
    assert '"appended": 0' in outcome


async def test_what_has_gone_on_live_is_forked_by_a_longer_snapshot(
    running: System, views: asyncpg.Connection, tmp_path: Path
) -> None:
    tenant, path = "live", tmp_path / "grows.jsonl"
    write_codex(path, turns=2)
    [thread] = threads_of(await imported(running, "codex", path, tenant))
    async with running.client(tenant=tenant) as client:
        assert "gone on" in await go_on(client, str(thread["thread"]))
    again = await imported(running, "codex", path, tenant)
    assert (threads_of(again)[0]["thread"], threads_of(again)[0]["appended"]) == (thread["thread"], 0)
    live = await records(views, tenant)
    write_codex(path, turns=3)
    longer = await imported(running, "codex", path, tenant)
    [fork] = threads_of(longer)
    assert (fork["created"], fork["parent"]) == (True, thread["thread"])
    assert "has gone on live" in str(reports_of(longer)[0]["notes"])
    after = await records(views, tenant)
    assert [row for row in after if row[1] == thread["thread"]] == live
    await imported(running, "codex", path, tenant)
    assert await records(views, tenant) == after
    write_codex(path, turns=4)
    [longest] = threads_of(await imported(running, "codex", path, tenant))
    assert (longest["thread"], longest["created"]) == (fork["thread"], False)
    assert int(str(longest["appended"])) > 0
    async with running.client(tenant=tenant) as client:
        turns = data_of(await client.turns(str(fork["thread"])))
        assert [turn["outcome"] for turn in turns] == ["completed"] * 2
        assert "gone on" in await go_on(client, str(fork["thread"]))
    before = await records(views, tenant)
    await imported(running, "codex", path, tenant)
    assert await records(views, tenant) == before


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
        thread = str(data_of(await client.threads())[0]["thread"])
        before = await client.thread(thread)
        assert before["status"] == "importing"
        lines = await importing
        assert threads_of(lines)[0]["thread"] == thread
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.thread(thread))["status"] == "importing":  # noqa: ASYNC110  # the views follow the log
                await asyncio.sleep(0.02)
        after = await client.thread(thread)
        assert (after["status"], after["last_turn"]) == ("active", 600)
        turns = data_of(await client.turns(thread, limit=500))
        assert {turn["outcome"] for turn in turns} == {"completed"}
        assert "gone on" in await go_on(client, thread)
    again = await imported(running, "codex", whole, "killed")
    assert sum(int(str(thread["appended"])) for thread in threads_of(again)) == 0


async def test_a_killed_ingest_goes_on_with_the_import_at_its_next_start(
    running: System, views: asyncpg.Connection, tmp_path: Path
) -> None:
    path, tenant = tmp_path / "rollout-long.jsonl", "ingest-killed"
    write_codex(path, turns=600)
    async with running.client(tenant=tenant) as client:
        raw = path.read_bytes()
        stored = await client.put_artifact(raw, "application/x-ndjson")
        file = {"path": path.name, "sha256": stored["sha256"], "size": len(raw), "companion": False}
        accepted = await client.command("/v1/imports", {"tool": "codex", "files": [file]})
        async with asyncio.timeout(30):
            await until_it_has_turns(client)
        thread = str(data_of(await client.threads())[0]["thread"])
        await client.submit(thread, "Is anybody there?", idempotency_key="too-early")
        left = workers(running)
        running.supervisor.kill("ingest")
        await asyncio.to_thread(psutil.wait_procs, left, 10)
        assert not any(worker.is_running() for worker in left), "a worker ends with its ingest"
        await running.supervisor.wait_ready("ingest")
        async with asyncio.timeout(40):
            while (standing := await client.get(f"/v1/imports/{accepted.body['id']}"))["status"] != "done":
                assert standing["status"] in {"waiting", "running"}, standing
                await asyncio.sleep(0.05)
            while (await client.thread(thread))["status"] == "importing":  # noqa: ASYNC110  # the views follow the log
                await asyncio.sleep(0.02)
        turns = data_of(await client.turns(thread, limit=500))
        assert {turn["outcome"] for turn in turns} == {"completed"}
    by = await views.fetch(
        "select actor, type, effect from views.events where tenant = $1 and actor <> 'import:codex'", tenant
    )
    assert [(row["type"], row["effect"]) for row in by] == [("input.submitted", "rejected")]
    ids = await views.fetchrow("select count(*), count(distinct id) from views.events where tenant = $1", tenant)
    assert ids is not None and ids[0] == ids[1]


async def until_it_has_turns(client: ThreadlogClient) -> None:
    while not await has_turns(client):  # noqa: ASYNC110  # the API has no way to wait for it
        await asyncio.sleep(0.02)


async def has_turns(client: ThreadlogClient) -> bool:
    threads = data_of(await client.threads())
    return bool(threads) and bool(data_of(await client.turns(str(threads[0]["thread"]), limit=1)))


def workers(running: System) -> list[psutil.Process]:
    """The import workers of this system's ingest."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "services.ingest.imports.worker" in " ".join(child.cmdline())
        and child.environ().get("THREADLOG_INGEST_PORT") == running.environment["THREADLOG_INGEST_PORT"]
    ]


async def test_bad_files_are_told_and_the_others_imported(
    running: System, views: asyncpg.Connection, tmp_path: Path
) -> None:
    good, other = SESSIONS / "codex" / "0.36_parallel.jsonl", SESSIONS / "claude" / "2.0.65_03_edit.jsonl"
    contents = {
        "0.jsonl": b"",
        "1.jsonl": bytes(range(256)) * 20,
        "2.jsonl": b"no session\n",
        "3.jsonl": other.read_bytes(),
        "4.jsonl": good.read_bytes(),
        "5.jsonl": b'{"type":"session_meta","payload":{"id":{}}}\n' * 3 + b'{"type":"event_msg","payload":[[',
    }
    tenant = "bad"
    async with running.client(tenant=tenant) as client:
        files: list[JsonValue] = []
        for name, content in contents.items():
            stored = await client.put_artifact(content, "application/x-ndjson")
            files.append({"path": name, "sha256": stored["sha256"], "size": len(content)})
        files.append({"path": "../../missing.jsonl", "sha256": "0" * 64, "size": 5})
        accepted = await client.command("/v1/imports", {"tool": "codex", "files": files})
        path = f"/v1/imports/{accepted.body['id']}"
        async with asyncio.timeout(60):
            while (await client.get(path))["status"] != "done":  # noqa: ASYNC110  # the API has no way to wait for it
                await asyncio.sleep(0.1)
        page = await client.get(f"{path}/files")
    found = page["files"]
    assert isinstance(found, list)
    problems = [
        report.get("problem") for file in found if isinstance(file, dict) and isinstance(report := file["report"], dict)
    ]
    assert problems == [
        None,
        "it is no text: it holds zero bytes",
        "no line of it is a JSON object",
        "it is of Claude Code: import it with `threadlog import claude-code`",
        None,
        None,
        "its bytes are not in the artifact store; upload them and import again",
    ]
    sessions: list[tuple[object, ...]] = []
    async with asyncio.timeout(60):  # the import is done when all is in the log; the views follow
        while sessions != [("7d93de97-cb99-4f50-88df-100fde8001c7", "active")]:
            await asyncio.sleep(0.05)
            query = "select labels ->> 'session' as session, status from views.threads where tenant = $1"
            sessions = [tuple(row) for row in await views.fetch(query, tenant)]


async def test_sessions_are_gone_on_with_and_everything_verifies(running: System) -> None:
    for tool in ("claude-code", "codex"):
        lines = await imported(running, tool, SESSIONS / FOLDERS[tool], "going-on")
        async with running.client(tenant="going-on") as client:
            created = [thread for thread in threads_of(lines) if thread["created"]]
            for thread in created[:3]:
                assert "gone on" in await go_on(client, str(thread["thread"]))
    code, found = await threadlog(running, "verify", "--all")
    assert code == 0, found
