"""Everything that the ingest service counts."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STUCK_REASONS = ("quarantined", "no_progress")
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class IngestMetrics:
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
        made = cls(
            requests=Counter(
                "threadlog_ingest_requests",
                "Answers, by method and status; a stream counts when it begins.",
                ["method", "status"],
                registry=registry,
            ),
            request_seconds=Histogram(
                "threadlog_ingest_request_seconds",
                "From a request's arrival to the beginning of its answer, by method.",
                ["method"],
                buckets=REQUEST_SECONDS,
                registry=registry,
            ),
            requests_under_way=Gauge(
                "threadlog_ingest_requests_under_way", "Requests whose answer has not begun.", registry=registry
            ),
            requests_refused=Counter(
                "threadlog_ingest_requests_refused",
                "Requests answered with overloaded, because too many were under way.",
                registry=registry,
            ),
            appends_failed=Counter(
                "threadlog_ingest_appends_failed", "Commands that the log did not acknowledge.", registry=registry
            ),
            undecided=Counter(
                "threadlog_ingest_undecided",
                "Commands that were answered as undecided: their effect was not known in time.",
                registry=registry,
            ),
            lookups_skipped=Counter(
                "threadlog_ingest_lookups_skipped",
                "Commands with an Idempotency-Key that were not looked for in the views, for the database was away.",
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_ingest_lag_records",
                "Records of thread-events that were not read here for the streams, as of the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_ingest_lag_seconds",
                "How long ago the log ended where the streams are now, for the partition that is furthest behind.",
                registry=registry,
            ),
            open_turns=Gauge(
                "threadlog_open_turns",
                "Turns that are open, of all tenants, as the views had them at the last look.",
                registry=registry,
            ),
            waiting_approvals=Gauge(
                "threadlog_waiting_approvals",
                "Tool calls that wait for a person's approval, of all tenants, as the views had them at the last look.",
                registry=registry,
            ),
            unknown_calls=Gauge(
                "threadlog_unknown_calls",
                "Tool calls of which is not known whether they ran, and which nobody has settled, of all tenants, as"
                " the views had them at the last look.",
                registry=registry,
            ),
            stuck_threads=Gauge(
                "threadlog_stuck_threads",
                "Threads that make no progress though they should, of all tenants, at the last look.",
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
                "Looks at what is open or stuck in which the views, thread-progress or the broker could not be asked.",
                registry=registry,
            ),
            artifact_bytes=Counter(
                "threadlog_ingest_artifact_bytes",
                "Bytes of artifacts that came from clients (up) or went to them (down).",
                ["direction"],
                registry=registry,
            ),
        )
        for reason in STUCK_REASONS:
            made.stuck_threads.labels(reason)
        return made
