"""The whole system on this machine: Apache Kafka, Postgres, and the four services as processes of their own."""

import asyncio
import contextlib
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from schemas.topics import TOPICS
from services.chassis.kafka_topics import kafka_topics
from services.chassis.settings import Settings
from services.chassis.topic_admin import apply, topic_specs
from services.cli.embedded import free_port, wait_until
from services.cli.supervised import Supervised, supervised
from services.client.client import ThreadlogClient
from services.projector.generations import migrate
from tests.support.services import apache_kafka, database, postgres

SERVICES = ("projector", "runtime", "tool_executor", "ingest")
SCRIPT = """
rules:
  - match: {steps: 0}
    calls:
      - {tool: echo, args: {text: "0123456789", bytes: 800}}
  - match: always
    text: It said what it was told.
"""
TOOLS = """
builtin: [echo]
tools:
  echo: {{effect: {effect}, max_attempts: 1, parallel: false}}
"""


@dataclass(slots=True)
class System:
    kafka_version: str
    postgres_version: str
    settings: Settings
    url: str
    pids: dict[str, int]
    """Of the root process of each part; its children count with it."""
    probes: dict[str, int]
    environment: dict[str, str]
    folder: Path
    _services: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def start(self, service: str, **environment: str) -> None:
        stack = contextlib.ExitStack()
        own = {**self.environment, "THREADLOG_PROBES_PORT": str(self.probes[service]), **environment}
        command = [sys.executable, "-m", f"services.{service}"]
        process = stack.enter_context(supervised(command, log=self.folder / f"{service}.log", environment=own))
        self._services[service] = stack
        self.pids[service] = process.pid
        self._wait_ready(service, process)

    def stop(self, service: str) -> None:
        self._services.pop(service).close()

    def stop_all(self) -> None:
        for service in list(self._services):
            self.stop(service)

    def _wait_ready(self, service: str, process: Supervised) -> None:
        url = f"http://127.0.0.1:{self.probes[service]}/readyz"

        def ready() -> bool:
            with contextlib.suppress(OSError):
                return bool(urllib.request.urlopen(url, timeout=1).status == 200)
            return False

        wait_until(ready, process, service)

    def restart_executor(self, effect: str) -> None:
        """With `echo` in this effect class."""
        if "tool_executor" in self._services:
            self.stop("tool_executor")
        path = self.folder / f"tools-{effect}.yaml"
        path.write_text(TOOLS.format(effect=effect))
        self.start("tool_executor", THREADLOG_EXECUTOR_TOOLS_FILE=str(path))

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time by part, children included, those that have ended too."""
        return {part: _cpu_of_tree(pid) for part, pid in self.pids.items()}

    def batches_sent(self) -> float:
        """Produce requests of the services so far."""
        return sum(self._metric(service, "threadlog_log_batches_sent_total") for service in self._services)

    def _metric(self, service: str, name: str) -> float:
        url = f"http://127.0.0.1:{self.probes[service]}/metrics"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


def _cpu_of_tree(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        times = process.cpu_times()
        total += times.children_user + times.children_system
    return total


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[System]:
    with apache_kafka(folder / "kafka", heap="1g") as kafka, postgres(folder / "postgres") as store:
        async with database(store.address) as dsn:
            script = folder / "script.yaml"
            script.write_text(SCRIPT)
            port = free_port()
            environment = {
                **os.environ,
                "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": kafka.address,
                "THREADLOG_POSTGRES_DSN": dsn,
                "THREADLOG_INGEST_AUTH": "dev",
                "THREADLOG_INGEST_PORT": str(port),
                "THREADLOG_RUNTIME_SCRIPT": str(script),
                "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(folder / "workspaces"),
                "THREADLOG_LOG_LEVEL": "warning",
            }
            settings = Settings(kafka_bootstrap_servers=kafka.address, postgres_dsn=dsn)
            async with kafka_topics(settings) as topics:
                await apply(topics, topic_specs(TOPICS, settings.topic_partitions, 1))
            await migrate(dsn)
            system = System(
                kafka.version,
                store.version,
                settings,
                f"http://127.0.0.1:{port}",
                {"kafka": kafka.pid, "postgres": store.pid},
                {service: free_port() for service in SERVICES},
                environment,
                folder,
            )
            try:
                for service in ("projector", "runtime", "ingest"):
                    await asyncio.to_thread(system.start, service)
                await asyncio.to_thread(system.restart_executor, "unsafe")
                yield system
            finally:
                await asyncio.to_thread(system.stop_all)


def client_of(system: System) -> ThreadlogClient:
    return ThreadlogClient(system.url, keyed=False)
