"""What every service counts around its own work. What the log counts is in `log.metrics`."""

import asyncio
import importlib.metadata
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from schemas.state import FOLD_VERSION

DATABASE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DELAY_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
DELAY_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CommonMetrics:
    build: Gauge
    database_seconds: Histogram
    database_errors: Counter
    event_loop_delay_seconds: Histogram
    partitions_added: Gauge

    @classmethod
    def register(cls, registry: CollectorRegistry, service: str) -> "CommonMetrics":
        ProcessCollector(registry=registry)
        made = cls(
            Gauge(
                "threadlog_build_info",
                "1, with what runs: the service, its release, and the version of its fold.",
                ["service", "version", "fold_version"],
                registry=registry,
            ),
            Histogram(
                "threadlog_database_seconds",
                "Seconds of a statement on the service's pool of connections, answered or not.",
                buckets=DATABASE_SECONDS,
                registry=registry,
            ),
            Counter(
                "threadlog_database_errors",
                "Statements on the pool that the database did not answer, or answered with an error.",
                registry=registry,
            ),
            Histogram(
                "threadlog_event_loop_delay_seconds",
                "How late the event loop wakes a task that has slept: what every answer of the process waits for.",
                buckets=DELAY_SECONDS,
                registry=registry,
            ),
            Gauge(
                "threadlog_partitions_added",
                "Partitions that thread-events was given since the process started: they are left alone.",
                registry=registry,
            ),
        )
        made.build.labels(service, importlib.metadata.version("threadlog"), str(FOLD_VERSION)).set(1)
        return made

    def count_statement(self, seconds: float, *, failed: bool) -> None:
        self.database_seconds.observe(seconds)
        if failed:
            self.database_errors.inc()

    async def watch_event_loop(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + DELAY_LOOK_SECONDS
            await asyncio.sleep(DELAY_LOOK_SECONDS)
            self.event_loop_delay_seconds.observe(max(0.0, loop.time() - due))
