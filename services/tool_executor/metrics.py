from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class ExecutorMetrics:
    """All metrics of the tool-executor."""

    claims: Counter
    """Claims read back, by whether they won."""
    running: Gauge
    ends: Counter
    """By outcome."""
    tool_seconds: Histogram
    lost: Counter
    """Calls of silent executors, appended as lost by this one."""
    append_failures: Counter
    waiting: Gauge
    """Threads with dispatched calls that wait for a free place."""
    reconciled: Counter
    """What downstreams said of unknown calls, by status; `unknown` is also what a hook that failed says."""
    left_to_people: Counter
    """Unknown reconcilable calls about which nothing could be found out."""

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "ExecutorMetrics":
        return cls(
            Counter("threadlog_executor_claims", "Claims read back", ["won"], registry=registry),
            Gauge("threadlog_executor_running_calls", "Calls that run", registry=registry),
            Counter("threadlog_executor_ends", "Ended calls", ["outcome"], registry=registry),
            Histogram("threadlog_executor_tool_seconds", "Seconds that tools ran", registry=registry),
            Counter("threadlog_executor_lost", "Calls of silent executors", registry=registry),
            Counter("threadlog_executor_append_failures", "Appends that failed", registry=registry),
            Gauge("threadlog_executor_waiting_threads", "Threads waiting for a free place", registry=registry),
            Counter("threadlog_executor_reconciled", "Answers of downstreams", ["status"], registry=registry),
            Counter(
                "threadlog_executor_left_to_people", "Unknown calls nothing was found out about", registry=registry
            ),
        )
