"""`make demo`: an agent fixes a failing test while its services are killed; then everything is checked.

Broker, database and services are this demo's own, on free ports, with a temporary folder: nothing is left of them.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer

from schemas.errors import ThreadlogError
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.catalog_reader import CatalogReader
from services.chassis.kafka import KafkaLog
from services.chassis.log import TopicPartition
from services.chassis.log_metrics import LogCounts
from services.cli.demo.evidence import Checksums, Evidence, Finding, findings
from services.cli.demo.records import logged_records
from services.cli.demo.repository import make_repository, run_tests
from services.cli.demo.story import Director, Moments, Watcher, write
from services.cli.dev import prepare, settings_of
from services.cli.embedded import BROKER_ENVIRONMENT, Running, embedded_broker, embedded_postgres, free_port
from services.cli.show import Conversation
from services.cli.supervised import ProgramEndedError, log_tail
from services.cli.supervisor import SERVICES, Supervisor
from services.client.client import ClientError, JsonObject, ThreadlogClient
from services.projector.generations import drop_views, view_checksums
from services.projector.settings import ProjectorSettings

HERE: Final = Path(__file__).parent
TENANT: Final = "demo"
REPOSITORY: Final = "shop"
TOOLS: Final = ["git_log", "git_status", "git_diff_unstaged", "shell", "read_file", "apply_patch"]
INPUT: Final = "A test of this repository fails. Find out why, repair the code, and show that all tests pass."
INSTRUCTIONS: Final = (
    "You are a programmer. The working directory is a git repository of Python code; its tests run with "
    "`python3 -m unittest`. Say in one sentence what you do before each step. Look around with the git tools, run the "
    "tests, change code with apply_patch, never the tests, run the tests again, look at your diff, then say what was "
    "wrong and what you changed."
)
SCRIPTED: Final = "scripted"
MOMENTS: Final = {True: Moments(3, 3, 5), False: Moments(2, 2, 3)}
"""Of the script; of a model of which nobody knows how many steps it will take."""
TURN_SECONDS: Final = {True: 100.0, False: 900.0}
CATALOG_SECONDS: Final = 60.0
VIEWS_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
RESULT_LINES_MAX: Final = 12


class DemoError(ThreadlogError):
    pass


def main(
    model: Annotated[str, typer.Option(help="A model string of pydantic-ai, such as openai:NAME.")] = SCRIPTED,
) -> None:
    """An agent fixes a failing test while its services are killed. Exit status 0 only if all checks hold."""
    if shutil.which("git") is None:
        sys.exit("The demo needs git: its agent works on a git repository.")
    try:
        holds = asyncio.run(_main(model))
    except* (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except* (ThreadlogError, ProgramEndedError, ClientError, TimeoutError) as failures:
        sys.exit("\n" + "\n".join([f"The demo failed. {failure}" for failure in _leaves(failures)]))
    sys.exit(0 if holds else 1)


async def _main(model: str) -> bool:
    main_task = asyncio.current_task()
    assert main_task is not None, "this is one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    started = asyncio.get_running_loop().time()
    with tempfile.TemporaryDirectory(prefix="threadlog-demo-") as folder:
        evidence = await Demo(Path(folder), model).run()
    evidence.seconds = asyncio.get_running_loop().time() - started
    found = findings(evidence)
    write(_table(found))
    return all(finding.holds is not False for finding in found)


class Demo:
    def __init__(self, folder: Path, model: str) -> None:
        self._folder = folder
        self._workspaces = folder / "workspaces"
        self._model = model
        self._is_scripted = model == SCRIPTED
        self._shown = Conversation(colors=sys.stdout.isatty(), result_lines_max=RESULT_LINES_MAX)
        self._started = asyncio.get_running_loop().time()

    async def run(self) -> Evidence:
        async with _stores(self._folder) as (kafka, postgres):
            self._tell(f"{kafka.version} and {postgres.version} run, with their data in memory and in {self._folder}")
            url = f"http://127.0.0.1:{free_port()}"
            environment = self._environment(kafka, postgres, url)
            await prepare(environment)
            log = await KafkaLog.open(settings_of(environment), "demo", LogCounts())
            try:
                async with Supervisor(environment, self._folder / "logs") as supervisor:
                    return await self._with_services(supervisor, log, postgres.address, url)
            finally:
                await log.close()

    async def _with_services(self, supervisor: Supervisor, log: KafkaLog, dsn: str, url: str) -> Evidence:
        await supervisor.start_all()
        await _wait_for_tools(log)
        processes = ", ".join([f"{name} {supervisor.pid(name)}" for name in SERVICES])
        self._tell(f"four services run as processes of their own: {processes}")
        async with ThreadlogClient(url, tenant=TENANT) as client, ThreadlogClient(url, tenant=TENANT) as second:
            created = await client.create_thread(config=self._config(), title="Demo", wait_applied=True)
            thread = created.thread
            repository = self._workspaces / TENANT / thread / REPOSITORY
            await asyncio.to_thread(make_repository, repository)
            evidence = Evidence(self._is_scripted, tests_before=await asyncio.to_thread(run_tests, repository))
            self._tell(f"a git repository with a failing test is in the workspace of thread {thread}")
            await self._session(client, second, supervisor, thread, evidence)
            evidence.tests_after = await asyncio.to_thread(run_tests, repository)
            evidence.shell_runs = _lines(repository.parent / "ran")
            evidence.log = await logged_records(log, ThreadKey(TenantId(TENANT), ThreadId(thread)))
            await self._rebuild(supervisor, log, dsn, evidence)
        return evidence

    async def _session(
        self,
        client: ThreadlogClient,
        second: ThreadlogClient,
        supervisor: Supervisor,
        thread: str,
        evidence: Evidence,
    ) -> None:
        moments = MOMENTS[self._is_scripted]
        watcher = Watcher(client, self._shown, evidence, moments, self._tell)
        director = Director(second, supervisor, evidence, moments, self._tell)
        self._tell(f"input: {INPUT}")
        try:
            async with asyncio.timeout(TURN_SECONDS[self._is_scripted]), asyncio.TaskGroup() as group:
                group.create_task(director.direct(thread))
                group.create_task(watcher.watch(thread))
                await client.submit(thread, INPUT)
        except TimeoutError:
            for name in SERVICES:
                write(f"\n{log_tail(supervisor.log(name))}")
            raise DemoError(f"The turn did not end within {TURN_SECONDS[self._is_scripted]:.0f} s.") from None

    async def _rebuild(self, supervisor: Supervisor, log: KafkaLog, dsn: str, evidence: Evidence) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            evidence.views_before = await _views_at(connection, await _ends(log))
            await supervisor.stop("projector")
            await drop_views(dsn, ProjectorSettings(postgres_dsn=dsn))
            self._tell("all views are dropped, and the projector starts again, to build them from the log")
            supervisor.start("projector")
            evidence.views_after = await _views_at(connection, await _ends(log))
        finally:
            await connection.close()

    def _environment(self, kafka: Running, postgres: Running, url: str) -> dict[str, str]:
        """Of the services. What the user has set for another threadlog is not for this one."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("THREADLOG_")}
        programs = Path(sys.executable).parent  # where mcp-server-git is
        return {
            **inherited,
            **BROKER_ENVIRONMENT,
            "PATH": f"{programs}{os.pathsep}{inherited.get('PATH', os.defpath)}",
            "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": kafka.address,
            "THREADLOG_POSTGRES_DSN": postgres.address,
            "THREADLOG_INGEST_AUTH": "dev",
            "THREADLOG_INGEST_PORT": url.rpartition(":")[2],
            "THREADLOG_RUNTIME_SCRIPT": str(HERE / "script.yaml"),
            "THREADLOG_EXECUTOR_TOOLS_FILE": str(HERE / "tools.yaml"),
            "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(self._workspaces),
        }

    def _config(self) -> JsonObject:
        return {
            "model": self._model,
            "instructions": INSTRUCTIONS,
            "tools": [*TOOLS],
            "environment": {"cwd": REPOSITORY},
        }

    def _tell(self, text: str) -> None:
        seconds = asyncio.get_running_loop().time() - self._started
        write(self._shown.note(f"[{seconds:5.1f} s] {text}"))


@contextlib.asynccontextmanager
async def _stores(folder: Path) -> AsyncIterator[tuple[Running, Running]]:
    folder.chmod(0o755)  # noqa: ASYNC240  # a moment; Postgres runs as another user where we are root
    with contextlib.ExitStack() as brokers, contextlib.ExitStack() as databases:
        # Both at once; where one fails, the other is waited for all the same, so that its context is left.
        kafka, postgres = await asyncio.gather(
            asyncio.to_thread(brokers.enter_context, embedded_broker(folder / "broker")),
            asyncio.to_thread(databases.enter_context, embedded_postgres(folder / "postgres")),
            return_exceptions=True,
        )
        for failure in (kafka, postgres):
            if isinstance(failure, BaseException):
                raise failure
        assert isinstance(kafka, Running)
        assert isinstance(postgres, Running)
        yield kafka, postgres


async def _wait_for_tools(log: KafkaLog) -> None:
    """An MCP server takes a moment to start; a model that is asked before sees none of its tools."""
    catalog = CatalogReader(log)
    following = asyncio.ensure_future(catalog.run())
    try:
        async with asyncio.timeout(CATALOG_SECONDS):
            while any(catalog.catalog.find(tool) is None for tool in TOOLS):  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        missing = [tool for tool in TOOLS if catalog.catalog.find(tool) is None]
        raise DemoError(f"No executor offers {', '.join(missing)} after {CATALOG_SECONDS:.0f} s.") from None
    finally:
        following.cancel()
        await asyncio.wait([following])


async def _ends(log: KafkaLog) -> Mapping[int, int]:
    partitions = range(await log.partition_count(THREAD_EVENTS.name))
    ends = await log.end_offsets([TopicPartition(THREAD_EVENTS.name, partition) for partition in partitions])
    return {tp.partition: end for tp, end in ends.items() if end}


async def _views_at(connection: asyncpg.Connection, ends: Mapping[int, int]) -> Checksums:
    """When they have come as far as the log."""
    try:
        async with asyncio.timeout(VIEWS_SECONDS):
            while True:
                with contextlib.suppress(asyncpg.UndefinedTableError):
                    rows = await connection.fetch('select "partition", next_offset from views.positions')
                    at = {row["partition"]: row["next_offset"] for row in rows}
                    if all(at.get(partition, 0) >= end for partition, end in ends.items()):
                        return await view_checksums(connection, "views")
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise DemoError(f"The views did not come as far as the log within {VIEWS_SECONDS:.0f} s.") from None


def _table(found: Sequence[Finding]) -> str:
    marks = {True: "✓", False: "✗", None: "–"}
    width = max(len(finding.claim) for finding in found)
    lines = [f"{marks[finding.holds]} {finding.claim:<{width}}  {finding.found}" for finding in found]
    if any(finding.holds is None for finding in found):
        lines.append("– was not put to the test: the model decides how its session goes, and there was no occasion.")
    return "\n" + "\n".join(lines) + "\n"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _leaves(failures: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure


if __name__ == "__main__":
    typer.run(main)
