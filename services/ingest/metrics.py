"""Everything that the ingest service counts."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
        )
