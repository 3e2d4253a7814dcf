"""Everything that the runtime counts."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

MODEL_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
WAIT_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BOOLEANS = ("true", "false")
DIRECTIONS = ("input", "output")


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    decisions: Counter
    decisions_for_others: Counter
    children_looked_up: Counter
    answers_superseded: Counter
    append_failures: Counter
    model_calls: Gauge
    model_seconds: Histogram
    model_wait_seconds: Histogram
    model_failures: Counter
    tokens: Counter
    takeovers: Counter
    quarantined: Gauge
    refolded: Counter
    transcripts_loaded: Counter
    lag_records: Gauge
    lag_seconds: Gauge

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "RuntimeMetrics":
        made = cls(
            decisions=Counter(
                "threadlog_runtime_decisions", "Events that were decided and appended.", ["kind"], registry=registry
            ),
            decisions_for_others=Counter(
                "threadlog_runtime_decisions_for_others",
                "Events that were appended to threads other than the one that they were decided for: to children and"
                " parents.",
                ["kind"],
                registry=registry,
            ),
            children_looked_up=Counter(
                "threadlog_runtime_children_looked_up",
                "Ends of child threads that were found in the views, and not told by the child's own runtime.",
                registry=registry,
            ),
            answers_superseded=Counter(
                "threadlog_runtime_answers_superseded",
                "Model answers that the fold gave no effect: another one was first, or the turn was cancelled.",
                registry=registry,
            ),
            append_failures=Counter(
                "threadlog_runtime_append_failures", "Appends that the log did not acknowledge.", registry=registry
            ),
            model_calls=Gauge("threadlog_runtime_model_calls", "Model calls under way.", registry=registry),
            model_seconds=Histogram(
                "threadlog_runtime_model_seconds",
                "Seconds of a model call, from being sent to its end, answered or failed.",
                buckets=MODEL_SECONDS,
                registry=registry,
            ),
            model_wait_seconds=Histogram(
                "threadlog_runtime_model_wait_seconds",
                "Seconds that a model call waited for a place among those that may be under way at once.",
                buckets=WAIT_SECONDS,
                registry=registry,
            ),
            model_failures=Counter(
                "threadlog_runtime_model_failures",
                "Failed model calls, by whether another try can help.",
                ["retriable"],
                registry=registry,
            ),
            tokens=Counter(
                "threadlog_runtime_tokens",
                "Tokens of the answers that came here, as providers count them, by direction.",
                ["direction"],
                registry=registry,
            ),
            takeovers=Counter(
                "threadlog_runtime_takeovers",
                "Turns that were found with an open step of another owner, and taken over.",
                registry=registry,
            ),
            quarantined=Gauge(
                "threadlog_runtime_quarantined_threads",
                "Threads set aside now, because they could not be folded or decided.",
                registry=registry,
            ),
            refolded=Counter(
                "threadlog_runtime_refolded_threads", "Threads that were set aside and read anew.", registry=registry
            ),
            transcripts_loaded=Counter(
                "threadlog_runtime_transcripts_loaded",
                "Cold transcripts loaded, by source: items of the views, a scan of the partition, or those of parents.",
                ["source"],
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_runtime_lag_records",
                "Records of the assigned partitions that were not read here, as of the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_runtime_lag_seconds",
                "How long ago the log ended where this runtime is now, for the partition that is furthest behind.",
                registry=registry,
            ),
        )
        for value in BOOLEANS:
            made.model_failures.labels(value)
        for direction in DIRECTIONS:
            made.tokens.labels(direction)
        return made
