"""Metrics of the ingest service.

No label has a tenant or a thread as its value: nobody bounds their number. What is counted for each record of a stream
is in `streams.metrics`.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STUCK_REASONS = ("quarantined", "no_progress")
"""Values of the label `reason`. Each is exported from the start, so that an alert sees 0 and not a gap."""
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets: fine around a millisecond, where an append without waiting lies."""


@dataclass(frozen=True, slots=True)
class IngestMetrics:
    """All metrics that are counted where something happens."""

    requests: Counter
    request_seconds: Histogram
    requests_under_way: Gauge
    requests_refused: Counter
    appends_failed: Counter
    undecided: Counter
    lookups_skipped: Counter
    lag_records: Gauge
    lag_seconds: Gauge
    open_turns: Gauge
    waiting_approvals: Gauge
    unknown_calls: Gauge
    stuck_threads: Gauge
    partitions_without_owner: Gauge
    ops_sources_failed: Counter
    artifact_bytes: Counter

    @classmethod
    def build(cls, registry: CollectorRegistry) -> "IngestMetrics":
        """Register the metrics."""
        made = cls(
            requests=Counter(
                "threadlog_ingest_requests",
                "Answers, by method and status. A stream counts when it begins.",
                ["method", "status"],
                registry=registry,
            ),
            request_seconds=Histogram(
                "threadlog_ingest_request_seconds",
                "Seconds from a request's arrival to the beginning of its answer, by method.",
                ["method"],
                buckets=REQUEST_SECONDS,
                registry=registry,
            ),
            requests_under_way=Gauge(
                "threadlog_ingest_requests_under_way", "Requests whose answer has not begun.", registry=registry
            ),
            requests_refused=Counter(
                "threadlog_ingest_requests_refused",
                "Requests refused as overloaded, because too many were under way.",
                registry=registry,
            ),
            appends_failed=Counter(
                "threadlog_ingest_appends_failed", "Commands that the log did not acknowledge.", registry=registry
            ),
            undecided=Counter(
                "threadlog_ingest_undecided",
                "Commands answered as undecided, because their effect was not known in time.",
                registry=registry,
            ),
            lookups_skipped=Counter(
                "threadlog_ingest_lookups_skipped",
                "Commands whose earlier tries were not looked up in the views, because the database was away.",
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_ingest_lag_records",
                "Records of thread-events that the streams of this process had not read yet at the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_ingest_lag_seconds",
                "Seconds that the streams of this process are behind the log, for the partition furthest behind.",
                registry=registry,
            ),
            open_turns=Gauge(
                "threadlog_open_turns",
                "Open turns of all tenants, as the views showed them at the last look.",
                registry=registry,
            ),
            waiting_approvals=Gauge(
                "threadlog_waiting_approvals",
                "Tool calls of all tenants that wait for a person's approval, as the views had them at the last look.",
                registry=registry,
            ),
            unknown_calls=Gauge(
                "threadlog_unknown_calls",
                "Tool calls of all tenants whose outcome is unknown and that nobody has settled, as the views showed"
                " them at the last look.",
                registry=registry,
            ),
            stuck_threads=Gauge(
                "threadlog_stuck_threads",
                "Threads of all tenants that should make progress and make none, at the last look.",
                ["reason"],
                registry=registry,
            ),
            partitions_without_owner=Gauge(
                "threadlog_partitions_without_owner",
                "Partitions of thread-events that no member of the group reads, at the last look.",
                ["group"],
                registry=registry,
            ),
            ops_sources_failed=Counter(
                "threadlog_ops_sources_failed",
                "Times that the views, thread-progress or the broker did not answer a look at what is open or stuck.",
                registry=registry,
            ),
            artifact_bytes=Counter(
                "threadlog_ingest_artifact_bytes",
                "Bytes of artifacts received from clients (up) or sent to them (down).",
                ["direction"],
                registry=registry,
            ),
        )
        for reason in STUCK_REASONS:
            made.stuck_threads.labels(reason)
        return made
