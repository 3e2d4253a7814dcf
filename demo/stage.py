"""What a demo plays on: broker, database and services of its own, on free ports, of which nothing is left."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from schemas.errors import ThreadlogError
from services.chassis.catalog.reader import CatalogReader
from services.chassis.kafka.kafka_log import KafkaLog
from services.cli.local.dev import prepare, settings_of
from services.cli.local.embedded import BROKER_ENVIRONMENT, Running, embedded_broker, embedded_postgres, free_port
from services.cli.local.supervised import ProgramEndedError
from services.cli.local.supervisor import SERVICES, Supervisor
from services.cli.show import Conversation
from services.client.client import ClientError, ThreadlogClient

TENANT: Final = "demo"
FIRST_PERSON: Final = "ada"
CATALOG_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
RESULT_LINES_MAX: Final = 12


class DemoError(ThreadlogError):
    pass


class Screen:
    """The session as it goes, and what happens around it, with the seconds since the start."""

    def __init__(self) -> None:
        self.session = Conversation(colors=sys.stdout.isatty(), result_lines_max=RESULT_LINES_MAX)
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    @property
    def seconds(self) -> float:
        return self._loop.time() - self._started

    def tell(self, text: str) -> None:
        self.write(self.session.note(f"[{self.seconds:5.1f} s] {text}"))

    @staticmethod
    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Stage:
    supervisor: Supervisor
    log: KafkaLog
    postgres_dsn: str
    workspaces: Path
    url: str
    environment: Mapping[str, str]
    """Environment of the services, beside what they inherit."""

    def client(self, person: str = FIRST_PERSON) -> ThreadlogClient:
        return ThreadlogClient(self.url, tenant=TENANT, subject=person)

    async def wait_for_tools(self, tools: list[str]) -> None:
        """An MCP server takes a moment to start; a model that is asked before sees none of its tools."""
        catalog = CatalogReader(self.log)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(catalog.run())
            try:
                async with asyncio.timeout(CATALOG_SECONDS):
                    while any(catalog.catalog.find(tool) is None for tool in tools):  # noqa: ASYNC110  # no event
                        await asyncio.sleep(LOOK_SECONDS)
            except TimeoutError:
                missing = [tool for tool in tools if catalog.catalog.find(tool) is None]
                raise DemoError(f"No executor offers {', '.join(missing)} after {CATALOG_SECONDS:.0f} s.") from None
            finally:
                following.cancel()


@contextlib.asynccontextmanager
async def stage(screen: Screen, own: Mapping[str, str]) -> AsyncIterator[Stage]:
    """`own` are the variables by which this demo's services differ from others."""
    with tempfile.TemporaryDirectory(prefix="threadlog-demo-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # noqa: ASYNC240  # a moment. Postgres runs as another user where we are root
        async with _stores(folder) as (kafka, postgres):
            screen.tell(f"{kafka.version} and {postgres.version} run, with their data in memory and in {folder}")
            port = free_port()
            environment = {**_environment(folder, kafka, postgres, port), **own}
            await prepare(environment)
            log = await KafkaLog.open(settings_of(environment), "demo")
            try:
                async with Supervisor(environment, folder / "logs") as supervisor:
                    await supervisor.start_all()
                    processes = ", ".join([f"{name} {supervisor.pid(name)}" for name in SERVICES])
                    screen.tell(f"four services run as processes of their own: {processes}")
                    url = f"http://127.0.0.1:{port}"
                    yield Stage(supervisor, log, postgres.address, folder / "workspaces", url, environment)
            finally:
                await log.close()


def run(demo: Coroutine[None, None, bool]) -> NoReturn:
    """Ends the process: with status 0 only if it held, and with what went wrong in words."""
    try:
        holds = asyncio.run(_until_told_to_stop(demo))
    except* (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except* (ThreadlogError, ProgramEndedError, ClientError) as failures:
        sys.exit("\n" + "\n".join([f"The demo failed. {failure}" for failure in _leaves(failures)]))
    sys.exit(0 if holds else 1)


async def _until_told_to_stop(demo: Coroutine[None, None, bool]) -> bool:
    task = asyncio.current_task()
    assert task is not None, "this is one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demo


@contextlib.asynccontextmanager
async def _stores(folder: Path) -> AsyncIterator[tuple[Running, Running]]:
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


def _environment(folder: Path, kafka: Running, postgres: Running, port: int) -> dict[str, str]:
    """Return the environment of the services. What the user has set for another threadlog is not for this one."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("THREADLOG_")}
    programs = Path(sys.executable).parent  # where mcp-server-git is
    return {
        **inherited,
        **BROKER_ENVIRONMENT,
        "PATH": f"{programs}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": kafka.address,
        "THREADLOG_POSTGRES_DSN": postgres.address,
        "THREADLOG_INGEST_AUTH": "dev",
        "THREADLOG_INGEST_PORT": str(port),
        "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(folder / "workspaces"),
        "THREADLOG_ARTIFACTS_URL": (folder / "artifacts").resolve().as_uri(),
    }


def _leaves(failures: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure
