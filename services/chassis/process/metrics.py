"""Metrics that every service has, whatever its own work is. The metrics of the log are in `chassis.log.metrics`."""

import asyncio
import importlib.metadata
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from schemas.state import FOLD_VERSION

DATABASE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the histogram's buckets: from an indexed read to the command timeout."""
DELAY_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bounds of the histogram's buckets: from an idle loop to one that should be restarted."""
DELAY_LOOK_SECONDS: Final = 0.5
"""Pause between two measurements. One costs a wake-up of the process, so an idle process should not have many."""


@dataclass(frozen=True, slots=True)
class CommonMetrics:
    """The metrics themselves. A name of a metric that is registered twice is an error of the library."""

    build: Gauge
    database_seconds: Histogram
    database_errors: Counter
    event_loop_delay_seconds: Histogram
    partitions_added: Gauge

    # The only way to make them: an unregistered metric would count in silence.
    @classmethod
    def register(cls, registry: CollectorRegistry, service: str) -> "CommonMetrics":
        ProcessCollector(registry=registry)
        made = cls(
            Gauge(
                "threadlog_build_info",
                "Always 1. The labels name the service, its release and the version of its fold.",
                ["service", "version", "fold_version"],
                registry=registry,
            ),
            Histogram(
                "threadlog_database_seconds",
                "Seconds that a statement took on the service's pool of connections, answered or not.",
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
                "Seconds by which the event loop wakes a sleeping task late. Every answer waits as long.",
                buckets=DELAY_SECONDS,
                registry=registry,
            ),
            Gauge(
                "threadlog_partitions_added",
                "Partitions added to thread-events since the process started, which it does not read.",
                registry=registry,
            ),
        )
        made.build.labels(service, importlib.metadata.version("threadlog"), str(FOLD_VERSION)).set(1)
        return made

    def count_statement(self, seconds: float, *, failed: bool) -> None:
        """Count one statement of the pool, once it is over."""
        self.database_seconds.observe(seconds)
        if failed:
            self.database_errors.inc()

    async def watch_event_loop(self) -> None:
        """Measure how late the event loop is, until cancelled.

        A task that sleeps is woken late by what blocks the loop in between. No other measurement is needed.
        """
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + DELAY_LOOK_SECONDS
            await asyncio.sleep(DELAY_LOOK_SECONDS)
            self.event_loop_delay_seconds.observe(max(0.0, loop.time() - due))
