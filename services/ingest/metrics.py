"""Everything that the ingest service counts."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.ingest.live import LiveCounts

REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class IngestMetrics:
    requests: Counter
    """Answers, by method and status. A stream counts when it begins."""
    request_seconds: Histogram
    """From a request's first byte to the first byte of its answer, by method."""
    requests_under_way: Gauge
    """Requests whose answer has not begun."""
    requests_refused: Counter
    """Answered with `overloaded`: too many were under way."""
    appends_failed: Counter
    """Commands that the log did not acknowledge."""
    undecided: Counter
    """Commands whose effect was not known in time."""
    lookups_skipped: Counter
    """Commands with an Idempotency-Key that were not looked for in the views, because the database was away."""
    stuck_threads: Gauge
    """Threads that make no progress though they should, by reason. Of all tenants, by the last look of this process."""
    partitions_without_owner: Gauge
    """Partitions of thread-events that no member of the group reads, by group."""
    ops_sources_failed: Counter
    """Views, broker or thread-progress could not be asked for what is stuck."""

    @classmethod
    def build(cls, registry: CollectorRegistry) -> "IngestMetrics":
        return cls(
            requests=Counter(
                "threadlog_ingest_requests", "Answers, by method and status.", ["method", "status"], registry=registry
            ),
            request_seconds=Histogram(
                "threadlog_ingest_request_seconds",
                "Until an answer begins.",
                ["method"],
                buckets=REQUEST_SECONDS,
                registry=registry,
            ),
            requests_under_way=Gauge(
                "threadlog_ingest_requests_under_way", "Requests whose answer has not begun.", registry=registry
            ),
            requests_refused=Counter(
                "threadlog_ingest_requests_refused", "Too many requests were under way.", registry=registry
            ),
            appends_failed=Counter(
                "threadlog_ingest_appends_failed", "Commands that the log did not acknowledge.", registry=registry
            ),
            undecided=Counter(
                "threadlog_ingest_undecided", "Commands whose effect was not known in time.", registry=registry
            ),
            lookups_skipped=Counter(
                "threadlog_ingest_lookups_skipped", "Idempotency-Keys that were not looked up.", registry=registry
            ),
            stuck_threads=Gauge(
                "threadlog_stuck_threads", "Threads that should make progress.", ["reason"], registry=registry
            ),
            partitions_without_owner=Gauge(
                "threadlog_partitions_without_owner", "Partitions that nobody reads.", ["group"], registry=registry
            ),
            ops_sources_failed=Counter(
                "threadlog_ops_sources_failed", "Sources that could not be asked.", registry=registry
            ),
        )


class LiveCollector(Collector):
    """threadlog_ingest_live_streams              streams that are open
    threadlog_ingest_live_threads              threads that are folded because somebody watches them
    threadlog_ingest_live_ring_bytes           newest records that are kept for streams that start a little behind
    threadlog_ingest_live_records_read_total          records of all threads that the reader has seen
    threadlog_ingest_live_records_folded_total        those of watched threads
    threadlog_ingest_live_progress_total              deltas and the like that were passed on
    threadlog_ingest_live_database_free_starts_total  watches that began without a look into the database
    threadlog_ingest_live_catch_ups_total             watches that began so far behind that they read the log themselves
    threadlog_ingest_live_cuts_total                  streams that were ended because their client could not keep up
    threadlog_ingest_live_folds_failed_total          records whose fold raised: a bug, always
    """

    def __init__(self, counts: LiveCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        for name, help_text, value in (
            ("streams", "streams that are open", counts.watches),
            ("threads", "threads that are folded", counts.threads),
            ("ring_bytes", "newest records kept", counts.ring_bytes),
        ):
            yield GaugeMetricFamily(f"threadlog_ingest_live_{name}", help_text, value=value)
        for name, help_text, value in (
            ("records_read", "records read", counts.records_read),
            ("records_folded", "records of watched threads", counts.records_folded),
            ("progress", "progress passed on", counts.progress_forwarded),
            ("database_free_starts", "watches that began without the database", counts.starts_without_database),
            ("catch_ups", "watches that read the log themselves", counts.catch_ups),
            ("cuts", "streams that were cut", counts.cuts),
            ("folds_failed", "folds that raised", counts.folds_failed),
        ):
            yield CounterMetricFamily(f"threadlog_ingest_live_{name}", help_text, value=value)
