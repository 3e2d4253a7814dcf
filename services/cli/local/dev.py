"""`threadlog dev` runs everything on this machine without installed services, in memory, and says so."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schemas.errors import ThreadlogError
from services.cli.database import migrate_all
from services.cli.local.embedded import (
    BROKER_ENVIRONMENT,
    Running,
    embedded_broker,
    embedded_postgres,
    free_port,
    port_is_free,
)
from services.cli.local.supervised import ProgramEndedError
from services.cli.local.supervisor import BESIDE, Supervisor, What
from services.cli.topics import apply_topics

if TYPE_CHECKING:
    from services.chassis.settings import Settings

PORT: Final = 8080
"""Port of the HTTP API, if it is free."""
LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the engines."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SCRIPT: Final = Path(__file__).with_name("dev_script.yaml")
"""What the model `scripted` plays without `--script`."""
KAFKA_VARIABLE: Final = "THREADLOG_KAFKA_BOOTSTRAP_SERVERS"
POSTGRES_VARIABLE: Final = "THREADLOG_POSTGRES_DSN"


@dataclass(frozen=True, slots=True)
class Started:
    """The engines that run, and how services find them."""

    environment: Mapping[str, str]
    """Environment of the services."""
    engines: tuple[Running, ...]
    """The broker and the database, if this process started them."""
    notes: tuple[str, ...]


def dev(
    port: Annotated[
        int | None, typer.Option(help=f"Port of the HTTP API [default: {PORT}, or a free one if it is in use].")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default model, such as openai:NAME [default: a script].")] = None,
    script: Annotated[
        Path | None, typer.Option(help="YAML file with the answers of the model `scripted`.", exists=True)
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="Tools file with MCP servers and policies.", exists=True)] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for logs, workspaces and data [default: a temporary one, removed at the end]."),
    ] = None,
) -> None:
    """Run a broker, a database and all services on this machine, until Ctrl-C.

    Set THREADLOG_KAFKA_BOOTSTRAP_SERVERS or THREADLOG_POSTGRES_DSN to use your own broker or database instead.
    """
    own = {
        "THREADLOG_INGEST_PORT": str(port or (PORT if port_is_free(PORT) else free_port())),
        "THREADLOG_INGEST_AUTH": "dev",
        "THREADLOG_RUNTIME_SCRIPT": str(script or SCRIPT),
    }
    if model is not None:
        own["THREADLOG_INGEST_DEFAULT_MODEL"] = model
    if tools is not None:
        own["THREADLOG_EXECUTOR_TOOLS_FILE"] = str(tools)
    try:
        with contextlib.ExitStack() as stack:
            where = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadlog-dev-")))
            where.mkdir(parents=True, exist_ok=True)
            where.chmod(0o755)  # Postgres runs as another user where we are root
            print("starting …", flush=True)
            started = stack.enter_context(engines(where, own))
            asyncio.run(_serve(started, where))
    except KeyboardInterrupt:
        sys.exit(130)
    except (ThreadlogError, ProgramEndedError) as error:
        sys.exit(f"threadlog: {error}")


@contextlib.contextmanager
def engines(folder: Path, environment: Mapping[str, str]) -> Iterator[Started]:
    """Yield the broker and the database, given or embedded, and the environment in which services find them."""
    found = {
        "THREADLOG_ARTIFACTS_URL": (folder / "artifacts").resolve().as_uri(),
        **os.environ,
        "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(folder / "workspaces"),
        **environment,
    }
    ours: list[Running] = []
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        if KAFKA_VARIABLE not in os.environ:
            broker = stack.enter_context(embedded_broker(folder / "broker"))
            ours.append(broker)
            notes.append(f"{broker.version}: threads live in memory and are gone when this ends")
            found[KAFKA_VARIABLE] = broker.address
            found = {**BROKER_ENVIRONMENT, **found}
        if POSTGRES_VARIABLE not in os.environ:
            database = stack.enter_context(embedded_postgres(folder / "postgres"))
            ours.append(database)
            notes.append(database.version)
            found[POSTGRES_VARIABLE] = database.address
        yield Started(found, tuple(ours), tuple(notes))


def settings_of(environment: Mapping[str, str]) -> "Settings":
    """Return the shared settings of a service with this environment."""
    from services.chassis.settings import Settings

    prefix = "THREADLOG_"
    names = Settings.model_fields
    given = {name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)}
    return Settings.model_validate({name: value for name, value in given.items() if name in names})


async def prepare(environment: Mapping[str, str]) -> None:
    """Create topics and tables."""
    settings = settings_of(environment)
    await apply_topics(settings)
    await migrate_all(settings)


async def _serve(started: Started, folder: Path) -> None:
    """Prepare the engines, run the services until a signal comes, and stop them. A second signal ends everything at
    once.
    """
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None, "this is one"
    for number in SIGNALS:
        loop.add_signal_handler(number, main.cancel)
    try:
        await prepare(started.environment)
        async with Supervisor(started.environment, folder / "logs", _tell) as supervisor:
            try:
                await supervisor.start_all()
                _greet(started, folder)
                for name in BESIDE:
                    supervisor.start(name)
                await _watch(started.engines)
            finally:
                for number in SIGNALS:  # the next one ends us at once, and all that we have started with us
                    loop.remove_signal_handler(number)
                print("\nstopping …", flush=True)
    except asyncio.CancelledError:
        return


async def _watch(engines: Iterable[Running]) -> None:
    """Watch the engines for ever. Raises ProgramEndedError when one ends."""
    while True:
        for engine in engines:
            if not _is_alive(engine.pid):
                raise ProgramEndedError(f"{engine.version} ended; its log is {engine.log}")
        await asyncio.sleep(LOOK_SECONDS)


def _greet(started: Started, folder: Path) -> None:
    """Print where everything is, and what to type next."""
    url = f"http://127.0.0.1:{started.environment['THREADLOG_INGEST_PORT']}"
    for note in started.notes:
        print(f"  {note}")
    print(f"  logs in {folder / 'logs'}, workspaces in {started.environment['THREADLOG_EXECUTOR_WORKSPACE_ROOT']}")
    at = "" if url.endswith(f":{PORT}") else f" --url {url}"
    print(f"\nthreadlog is ready: {url}\n  threadlog chat{at}")
    if ours := _variables(started):
        print(f"For verify, export and the other commands: export {' '.join(ours)}")
    print("Ctrl-C stops everything.", flush=True)


def _variables(started: Started) -> list[str]:
    """Return the variables with which other commands find what was started here."""
    names = (KAFKA_VARIABLE, "THREADLOG_KAFKA_IDEMPOTENCE", POSTGRES_VARIABLE, "THREADLOG_ARTIFACTS_URL")
    found = {name: started.environment[name] for name in names if name in started.environment}
    return [f"{name}={shlex.quote(value)}" for name, value in found.items() if os.environ.get(name) != value]


def _tell(service: str, what: What, pid: int) -> None:
    """Print what happens to services after their start: who kills one wants to see that it returns."""
    if what != "started":
        print(f"  {service} {what}{f' (process {pid})' if pid else ''}", flush=True)


def _is_alive(pid: int) -> bool:
    """Return whether the process exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
