"""All metrics of the tool-executor.

Labels have few values that are known in advance. Tools, tenants and threads are no labels: nobody bounds their number.
Labels with two values are created at the start, so that a rate over them exists before the first event.
"""

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TOOL_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0)
"""The buckets reach from reading a file to a command that runs for an hour."""
CLAIM_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The buckets reach to the default lease: a claim that takes longer is given up."""
BOOLEANS: Final = ("true", "false")


@dataclass(frozen=True, slots=True)
class ExecutorMetrics:
    """One field for each metric; the help texts below say what they count."""

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
                "Claims that were read back, by whether they won, which means they were the first for their attempt.",
                ["won"],
                registry=registry,
            ),
            claim_seconds=Histogram(
                "threadlog_executor_claim_seconds",
                "Seconds from the append of a claim until it was read back. Pure calls do not wait for it.",
                buckets=CLAIM_SECONDS,
                registry=registry,
            ),
            running=Gauge(
                "threadlog_executor_running_calls",
                "Calls that take a slot: they are claimed or running.",
                registry=registry,
            ),
            ends=Counter("threadlog_executor_ends", "Calls that ended, by outcome.", ["outcome"], registry=registry),
            tool_seconds=Histogram(
                "threadlog_executor_tool_seconds",
                "Seconds that a tool ran, whatever its outcome.",
                buckets=TOOL_SECONDS,
                registry=registry,
            ),
            lost=Counter(
                "threadlog_executor_lost",
                "Calls of other executors that this one declared lost, because they sent no heartbeat for their lease.",
                registry=registry,
            ),
            append_failures=Counter(
                "threadlog_executor_append_failures", "Appends that the log did not acknowledge.", registry=registry
            ),
            artifacts=Counter(
                "threadlog_executor_artifacts",
                "Outputs and blobs too large for a result, by whether the artifact store kept them.",
                ["kept"],
                registry=registry,
            ),
            waiting=Gauge(
                "threadlog_executor_waiting_threads",
                "Threads whose dispatched calls wait for a free slot.",
                registry=registry,
            ),
            reconciled=Counter(
                "threadlog_executor_reconciled",
                "Answers of downstreams about unknown calls, by status. A hook that fails counts as unknown.",
                ["status"],
                registry=registry,
            ),
            left_to_people=Counter(
                "threadlog_executor_left_to_people",
                "Unknown reconcilable calls that were left to people, because the downstream could not say.",
                registry=registry,
            ),
            quarantined=Gauge(
                "threadlog_executor_quarantined_threads",
                "Threads that are set aside because they could not be folded, or whose refold is not yet proven.",
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_executor_lag_records",
                "Records of the assigned partitions that this executor has not read yet, as of the last check.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_executor_lag_seconds",
                "Seconds that this executor is behind the end of the log, for its slowest partition.",
                registry=registry,
            ),
        )
        for value in BOOLEANS:
            made.claims.labels(value)
            made.artifacts.labels(value)
        return made
