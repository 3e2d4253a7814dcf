"""The system under the bench: on a Kafka and a Postgres of its own, with a model and a tool that take no time."""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil

from schemas.topics import THREAD_EVENTS
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log.port import TopicPartition
from services.cli.local.supervisor import SERVICES
from tests.support.processes.services import apache_kafka, database, postgres
from tests.support.processes.system import System, system

LOOK_SECONDS = 0.1
SHOWN_SECONDS_MAX = 600.0

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


@dataclass(frozen=True, slots=True)
class Bench:
    kafka_version: str
    postgres_version: str
    system: System
    stores: Mapping[str, int]
    """Process ids of Kafka's JVM and of Postgres."""

    async def use_effect(self, effect: str) -> None:
        """Start the executor again, with `echo` in this effect class."""
        supervisor = self.system.supervisor
        await supervisor.stop("tool-executor")
        self.system.write_tools(TOOLS.format(effect=effect))
        supervisor.start("tool-executor")
        await supervisor.wait_ready("tool-executor")

    async def all_shown(self) -> None:
        """Wait until the views hold the log up to its present end."""
        log = await KafkaLog.open(self.system.settings, "bench-ends")
        connection = await asyncpg.connect(self.system.settings.postgres_dsn)
        try:
            partitions = await log.partition_count(THREAD_EVENTS.name)
            ends = await log.end_offsets([TopicPartition(THREAD_EVENTS.name, number) for number in range(partitions)])
            async with asyncio.timeout(SHOWN_SECONDS_MAX):
                while True:
                    rows = await connection.fetch('select "partition", next_offset from views.positions')
                    shown = dict(map(tuple, rows))
                    if all(shown.get(tp.partition, 0) >= end for tp, end in ends.items()):
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            await connection.close()
            await log.close()

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time by part, its children included, those that have ended too."""
        supervisor = self.system.supervisor
        pids = {**self.stores, **{service: supervisor.pid(service) or 0 for service in SERVICES}}
        return {part: _cpu_of_tree(pid) for part, pid in pids.items()}

    def batches_sent(self) -> float:
        """Produce requests of the services so far."""
        return sum(self._metric(service, "threadlog_log_batches_sent_total") for service in SERVICES)

    def _metric(self, service: str, name: str) -> float:
        url = f"http://127.0.0.1:{self.system.supervisor.probes_port(service)}/metrics"
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
async def running(folder: Path) -> AsyncIterator[Bench]:
    with apache_kafka(folder / "kafka", heap="1g") as kafka, postgres(folder / "postgres") as store:
        async with (
            database(store.address) as dsn,
            system(
                folder,
                kafka=kafka.address,
                postgres=dsn,
                script=SCRIPT,
                tools=TOOLS.format(effect="unsafe"),
                environment={"THREADLOG_LOG_LEVEL": "warning"},
            ) as found,
        ):
            yield Bench(kafka.version, store.version, found, {"kafka": kafka.pid, "postgres": store.pid})
