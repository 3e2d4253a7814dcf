"""Everything that the tool-executor counts."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TOOL_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0)
CLAIM_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BOOLEANS = ("true", "false")


@dataclass(frozen=True, slots=True)
class ExecutorMetrics:
    claims: Counter
    claim_seconds: Histogram
    running: Gauge
    ends: Counter
    tool_seconds: Histogram
    lost: Counter
    append_failures: Counter
    artifacts: Counter
    waiting: Gauge
    reconciled: Counter
    left_to_people: Counter
    quarantined: Gauge
    lag_records: Gauge
    lag_seconds: Gauge

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "ExecutorMetrics":
        made = cls(
            claims=Counter(
                "threadlog_executor_claims",
                "Claims read back, by whether they won: were the first for their attempt.",
                ["won"],
                registry=registry,
            ),
            claim_seconds=Histogram(
                "threadlog_executor_claim_seconds",
                "Seconds from the append of a claim to its being read back; pure tools start without waiting for it.",
                buckets=CLAIM_SECONDS,
                registry=registry,
            ),
            running=Gauge(
                "threadlog_executor_running_calls", "Calls that hold a place: claimed or running.", registry=registry
            ),
            ends=Counter("threadlog_executor_ends", "Ended calls, by outcome.", ["outcome"], registry=registry),
            tool_seconds=Histogram(
                "threadlog_executor_tool_seconds",
                "Seconds that a tool ran, whatever came of it.",
                buckets=TOOL_SECONDS,
                registry=registry,
            ),
            lost=Counter(
                "threadlog_executor_lost",
                "Calls of other executors that this one has declared lost: no heartbeat for their lease.",
                registry=registry,
            ),
            append_failures=Counter(
                "threadlog_executor_append_failures", "Appends that the log did not acknowledge.", registry=registry
            ),
            artifacts=Counter(
                "threadlog_executor_artifacts",
                "What results had no room for, by whether the artifact store took it.",
                ["kept"],
                registry=registry,
            ),
            waiting=Gauge(
                "threadlog_executor_waiting_threads",
                "Threads with dispatched calls that wait for a free place.",
                registry=registry,
            ),
            reconciled=Counter(
                "threadlog_executor_reconciled",
                "Answers of downstreams about unknown calls, by status; a hook that failed says unknown, too.",
                ["status"],
                registry=registry,
            ),
            left_to_people=Counter(
                "threadlog_executor_left_to_people",
                "Unknown reconcilable calls about which nothing could be found out.",
                registry=registry,
            ),
            quarantined=Gauge(
                "threadlog_executor_quarantined_threads",
                "Threads set aside because they could not be folded, or read anew and not yet known to be well.",
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_executor_lag_records",
                "Records of the assigned partitions that were not read here, as of the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_executor_lag_seconds",
                "How long ago the log ended where this executor is now, for the partition that is furthest behind.",
                registry=registry,
            ),
        )
        for value in BOOLEANS:
            made.claims.labels(value)
            made.artifacts.labels(value)
        return made
