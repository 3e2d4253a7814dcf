"""`make demo`: an agent fixes a failing test while its services are killed and people step in; then all is checked."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer

from demo.evidence import Checksums, Evidence, findings
from demo.findings import holding, table
from demo.imported import go_on_with_sessions, verify_all
from demo.people import NAME, SecondPerson
from demo.records import logged_records
from demo.releases import TOOL, URL_VARIABLE, Releases, releases
from demo.repository import make_repository, run_tests
from demo.stage import LOOK_SECONDS, TENANT, DemoError, Screen, Stage, run, stage
from demo.story import Director, Moments, Watcher
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import TopicPartition
from services.cli.local.supervised import log_tail
from services.cli.local.supervisor import SERVICES
from services.client.client import JsonObject
from services.projector.generations.generations import drop_views, view_checksums
from services.projector.settings import ProjectorSettings

HERE: Final = Path(__file__).parent
REPOSITORY: Final = "shop"
TOOLS: Final = ["git_log", "git_status", "git_diff_unstaged", "shell", "read_file", "apply_patch", TOOL]
INPUT: Final = "A test of this repository fails. Find out why, repair the code, show that it passes, and publish 1.0.1."
INSTRUCTIONS: Final = (
    "You are a programmer. The working directory is a git repository of Python code; its tests run with "
    "`python3 -m unittest`. Say in one sentence what you do before each step. Look around with the git tools, run the "
    "tests, change code with apply_patch, never the tests, run the tests again, look at your diff, publish the version "
    "once, then say what was wrong and what you changed."
)
SCRIPTED: Final = "scripted"
MOMENTS: Final = {True: Moments(3, 3, 6, 3), False: Moments(2, 2, 3, 3)}
"""When things happen with the script, and with a model that may take any number of steps."""
TURN_SECONDS: Final = {True: 100.0, False: 900.0}
VIEWS_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 5
"""Short, so that nobody waits for long until a call counts as lost."""


def main(
    model: Annotated[str, typer.Option(help="A model string of pydantic-ai, such as openai:NAME.")] = SCRIPTED,
) -> None:
    """An agent fixes a failing test while services are killed and people step in. Exit status 0 only if all holds."""
    if shutil.which("git") is None:
        sys.exit("The demo needs git: its agent works on a git repository.")
    run(demo(model))


async def demo(model: str) -> bool:
    screen = Screen()
    own = {
        "THREADLOG_RUNTIME_SCRIPT": str(HERE / "script.yaml"),
        "THREADLOG_EXECUTOR_TOOLS_FILE": str(HERE / "tools.yaml"),
        "THREADLOG_EXECUTOR_LEASE_SECONDS": str(LEASE_SECONDS),
    }
    async with releases() as outside, stage(screen, {**own, URL_VARIABLE: outside.url}) as on:
        evidence = await play(on, outside, screen, model)
    evidence.seconds = screen.seconds
    found = findings(evidence)
    screen.write(table(found))
    return holding(found)


async def play(on: Stage, outside: Releases, screen: Screen, model: str) -> Evidence:
    await on.wait_for_tools(TOOLS)
    config: JsonObject = {
        "model": model,
        "instructions": INSTRUCTIONS,
        "tools": [*TOOLS],
        "tool_policies": {TOOL: {"approval": "always"}},
        "environment": {"cwd": REPOSITORY},
    }
    async with on.client() as client:
        thread = (await client.create_thread(config=config, title="Demo", wait_applied=True)).thread
    repository = on.workspaces / TENANT / thread / REPOSITORY
    await asyncio.to_thread(make_repository, repository)
    evidence = Evidence(model == SCRIPTED, tests_before=await asyncio.to_thread(run_tests, repository))
    screen.tell(f"a git repository with a failing test is in the workspace of thread {thread}")
    await _session(on, outside, screen, thread, evidence)
    evidence.tests_after = await asyncio.to_thread(run_tests, repository)
    evidence.shell_runs = _lines(repository.parent / "ran")
    evidence.released = [release.key for release in outside.read()]
    evidence.log = await logged_records(on.log, ThreadKey(TenantId(TENANT), ThreadId(thread)))
    evidence.gone_on = await go_on_with_sessions(on, screen)
    await _rebuild(on, screen, evidence)
    screen.tell("threadlog verify --all builds everything once more and compares")
    evidence.verified = await verify_all(on.environment)
    return evidence


async def _session(on: Stage, outside: Releases, screen: Screen, thread: str, evidence: Evidence) -> None:
    moments = MOMENTS[evidence.is_scripted]
    seconds = TURN_SECONDS[evidence.is_scripted]
    screen.tell(f"input: {INPUT}")
    try:
        async with (
            on.client() as watching,
            on.client() as directing,
            on.client(NAME) as other,
            asyncio.timeout(seconds),
        ):
            watcher = Watcher(watching, screen, evidence, moments)
            director = Director(directing, on.supervisor, outside, screen, evidence, moments)
            second_person = SecondPerson(other, directing, outside, screen, evidence, moments.second_person_steers)
            async with asyncio.TaskGroup() as group:
                group.create_task(director.direct(thread))
                group.create_task(second_person.take_part(thread))
                group.create_task(watcher.watch(thread))
                await watching.submit(thread, INPUT)
    except TimeoutError:
        logs = "\n".join([log_tail(on.supervisor.log(name)) for name in SERVICES])
        raise DemoError(f"The turn did not end within {seconds:.0f} s.\n{logs}") from None


async def _rebuild(on: Stage, screen: Screen, evidence: Evidence) -> None:
    connection = await asyncpg.connect(on.postgres_dsn)
    try:
        ends = await _ends(on.log)
        evidence.views_before = await _views_at(connection, ends)
        await on.supervisor.stop("projector")
        await drop_views(on.postgres_dsn, ProjectorSettings(postgres_dsn=on.postgres_dsn))
        screen.tell("all views are dropped, and the projector starts again, to build them from the log")
        on.supervisor.start("projector")
        evidence.views_after = await _views_at(connection, ends)
    finally:
        await connection.close()


async def _ends(log: KafkaLog) -> Mapping[int, int]:
    partitions = range(await log.partition_count(THREAD_EVENTS.name))
    ends = await log.end_offsets([TopicPartition(THREAD_EVENTS.name, partition) for partition in partitions])
    return {tp.partition: end for tp, end in ends.items()}


async def _views_at(connection: asyncpg.Connection, ends: Mapping[int, int]) -> Checksums:
    """When they have come as far as the log."""
    try:
        async with asyncio.timeout(VIEWS_SECONDS):
            while True:
                with contextlib.suppress(asyncpg.UndefinedTableError):
                    rows = await connection.fetch('select "partition", next_offset from views.positions')
                    if {row["partition"]: row["next_offset"] for row in rows} == ends:
                        return await view_checksums(connection, "views")
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise DemoError(f"The views did not come as far as the log within {VIEWS_SECONDS:.0f} s.") from None


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    typer.run(main)
