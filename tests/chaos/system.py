"""What chaos runs on: Apache Kafka, Postgres, and two instances of each service, all of which may be killed."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncpg

from services.chassis.settings import Settings
from services.cli.database import migrate_all
from services.cli.local.embedded import embedded_postgres, free_port
from services.cli.local.supervisor import SERVICES, Restarts, ServiceError, Supervisor
from services.cli.topics import apply_topics
from tests.chaos.ledger import CLASSES, LOOKUP, PREFIX, Ledger
from tests.chaos.load import SCRIPT
from tests.chaos.stores import Store
from tests.support.processes.services import apache_kafka

INSTANCES = ("0", "1")
LEASE_SECONDS = 5
TOOL_SECONDS = 10
"""What a tool may take; a reconcilable call that did not happen is certain only then."""
RESTARTS = Restarts(tries_max=1_000, most_seconds=0.5)
"""Of services that are killed on purpose: never given up."""
ROOT = Path(__file__).parents[2]


class Victim(Protocol):
    name: str

    def is_up(self) -> bool: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def go_on(self) -> None: ...

    async def wait_ready(self) -> None: ...


class ServiceVictim:
    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self.name = name
        self._supervisor = supervisor

    def is_up(self) -> bool:
        return self._supervisor.is_running(self.name)

    def kill(self) -> None:
        self._supervisor.kill(self.name)

    def stop(self) -> None:
        self._supervisor.kill(self.name, signal.SIGSTOP)

    def go_on(self) -> None:
        with contextlib.suppress(ServiceError):  # it ended before it was stopped
            self._supervisor.kill(self.name, signal.SIGCONT)

    async def wait_ready(self) -> None:
        await self._supervisor.wait_ready(self.name)


@dataclass(frozen=True, slots=True)
class ChaosSystem:
    supervisor: Supervisor
    environments: Mapping[str, Mapping[str, str]]
    """What each instance has of its own, by its name."""
    kafka: Store
    postgres: Store
    settings: Settings
    urls: Mapping[str, str]
    """Of the ingest instances, by their names."""
    ledger: Ledger
    folder: Path

    def victims(self) -> dict[str, Victim]:
        services = [ServiceVictim(self.supervisor, name) for name in self.environments]
        victims: list[Victim] = [*services, self.kafka, self.postgres]
        return {victim.name: victim for victim in victims}

    def start(self, name: str) -> None:
        service, _, instance = name.rpartition("-")
        self.supervisor.start(service, self.environments[name], instance=instance, restarts=RESTARTS)


@contextlib.asynccontextmanager
async def chaos_system(folder: Path) -> AsyncIterator[ChaosSystem]:
    """Ready. `folder` is short, so that Postgres' socket lies in it and stays where it is over restarts."""
    ledger = Ledger(folder / "ledger")
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / "tools.yaml").write_text(tools_file(folder / "ledger"))
    kafka = Store("kafka", lambda: apache_kafka(folder / "kafka", quick_start=True))
    postgres = Store("postgres", lambda: embedded_postgres(folder / "pg", options={"max_connections": "200"}))
    async with contextlib.AsyncExitStack() as stack:
        for store in (kafka, postgres):
            await store.open()
            stack.push_async_callback(store.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(lambda: [keeper.cancel() for keeper in keepers])
        keepers = [tasks.create_task(store.keep()) for store in (kafka, postgres)]
        settings = Settings(
            kafka_bootstrap_servers=kafka.running.address,
            postgres_dsn=await _own_database(postgres.running.address),
            instance="chaos",
        )
        await apply_topics(settings)
        await migrate_all(settings)
        supervisor = await stack.enter_async_context(
            Supervisor({**os.environ, **_environment(settings, folder)}, folder / "logs")
        )
        ports = {f"ingest-{instance}": free_port() for instance in INSTANCES}
        environments: dict[str, dict[str, str]] = {
            f"{service}-{instance}": {} for service in SERVICES for instance in INSTANCES
        }
        for name, port in ports.items():
            environments[name]["THREADLOG_INGEST_PORT"] = str(port)
        urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        found = ChaosSystem(supervisor, environments, kafka, postgres, settings, urls, ledger, folder)
        for name in environments:
            found.start(name)
        for name in environments:
            await supervisor.wait_ready(name)
        yield found


def _environment(settings: Settings, folder: Path) -> dict[str, str]:
    return {
        "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "THREADLOG_POSTGRES_DSN": settings.postgres_dsn,
        "THREADLOG_INGEST_AUTH": "dev",
        "THREADLOG_RUNTIME_SCRIPT": str(folder / "script.yaml"),
        "THREADLOG_EXECUTOR_TOOLS_FILE": str(folder / "tools.yaml"),
        "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(folder / "workspaces"),
        "THREADLOG_ARTIFACTS_URL": (folder / "artifacts").resolve().as_uri(),
        "THREADLOG_EXECUTOR_LEASE_SECONDS": str(LEASE_SECONDS),
    }


def tools_file(ledger: Path) -> str:
    lines = ["builtin: []", "mcp:", "  ledger:", f"    command: {sys.executable}"]
    lines += [f"    args: [-m, tests.chaos.ledger_server, {ledger}]", f"    cwd: {ROOT}", "tools:"]
    for effect in CLASSES:
        hook = f", reconcile: {{tool: {LOOKUP}}}" if effect == "reconcilable" else ""
        policy = f"effect: {effect}, timeout_seconds: {TOOL_SECONDS}, max_attempts: 100{hook}"
        lines.append(f"  {PREFIX}{effect}: {{{policy}}}")
    return "\n".join(lines) + "\n"


async def _own_database(server_dsn: str) -> str:
    connection = await asyncpg.connect(server_dsn)
    try:
        await connection.execute("create database threadlog template template0")
    finally:
        await connection.close()
    return server_dsn.replace("/postgres?", "/threadlog?")
