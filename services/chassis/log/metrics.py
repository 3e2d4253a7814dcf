"""Metrics of the log, for every implementation and service: integers on the hot path, read when Prometheus asks.

A counter of the metrics library takes a lock with each count; with several counts per record that would show.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.chassis.log.outbox import OutboxCounts


@dataclass(slots=True)
class LogCounts:
    """The counts themselves, of one process."""

    outbox: OutboxCounts = field(default_factory=OutboxCounts)
    commits_failed: int = 0

    def count_failed_commit(self) -> None:
        self.commits_failed += 1


class LogCollector(Collector):
    """Shows the counts to Prometheus."""

    def __init__(self, counts: LogCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        outbox = self._counts.outbox
        for name, help_text, value in (
            ("records_appended", "Records that the broker acknowledged.", outbox.records),
            ("batches_sent", "Batches sent, retries included. Each is one round trip.", outbox.batches),
            ("batch_retries", "Batches sent again after a temporary error.", outbox.retries),
            (
                "appends_failed",
                "Appends that failed: too large, not acknowledged in time, or made after the log was closed.",
                outbox.appends_failed,
            ),
            (
                "lossy_records_dropped",
                "Records of thread-progress that were dropped because too many waited to be sent.",
                outbox.lossy_records_dropped,
            ),
            (
                "commits_failed",
                "Commits of offsets that failed. Only lag tools read these offsets.",
                self._counts.commits_failed,
            ),
        ):
            yield CounterMetricFamily(f"threadlog_log_{name}", help_text, value=value)
