"""What the log counts, for every implementation and service: integers on the hot path, read when Prometheus asks."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.chassis.outbox import OutboxCounts


@dataclass(slots=True)
class LogCounts:
    outbox: OutboxCounts = field(default_factory=OutboxCounts)
    commits_failed: int = 0

    def count_failed_commit(self) -> None:
        self.commits_failed += 1


class LogCollector(Collector):
    """threadlog_log_records_appended_total          records that the broker acknowledged
    threadlog_log_batches_sent_total              batches sent, retries included; one round trip each
    threadlog_log_batch_retries_total             batches sent again after a retriable error
    threadlog_log_appends_failed_total            appends that failed: no acknowledgement in time, too large, closed
    threadlog_log_lossy_records_dropped_total     progress records that were dropped because the outbox was full
    threadlog_log_commits_failed_total            commits of offsets, which only lag tools read, that failed
    """

    def __init__(self, counts: LogCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        outbox = self._counts.outbox
        for name, help_text, value in (
            ("records_appended", "records that the broker acknowledged", outbox.records),
            ("batches_sent", "batches sent, retries included", outbox.batches),
            ("batch_retries", "batches sent again after a retriable error", outbox.retries),
            ("appends_failed", "appends that failed", outbox.appends_failed),
            ("lossy_records_dropped", "progress records dropped", outbox.lossy_records_dropped),
            ("commits_failed", "commits of offsets that failed", self._counts.commits_failed),
        ):
            yield CounterMetricFamily(f"threadlog_log_{name}", help_text, value=value)
