"""Everything that the runtime counts.

No label has values that nobody has bounded: neither tenants nor threads nor models are labels. Values of a label that
are known beforehand exist from the start, so a rate of something that never happened is 0 instead of missing.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Answers take from a tenth of a second (a small model) to ten minutes (the timeout), so the buckets double.
MODEL_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
# A free slot is taken within a millisecond; whoever waits does so for as long as other calls take.
WAIT_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BOOLEANS = ("true", "false")
DIRECTIONS = ("input", "output")


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    """The runtime's metrics, one field each. All `Runtime`s of a process count into the same ones."""

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
        """Create the metrics in a registry that is passed in, so several runtimes of a test do not share any."""
        made = cls(
            decisions=Counter(
                "threadlog_runtime_decisions", "Events decided and appended, by kind.", ["kind"], registry=registry
            ),
            decisions_for_others=Counter(
                "threadlog_runtime_decisions_for_others",
                "Events appended to other threads than the one that was decided about: to children and parents.",
                ["kind"],
                registry=registry,
            ),
            children_looked_up=Counter(
                "threadlog_runtime_children_looked_up",
                "Ends of child threads found in the views because the child's own runtime did not report them.",
                registry=registry,
            ),
            answers_superseded=Counter(
                "threadlog_runtime_answers_superseded",
                "Model answers without effect: another answer was first, or the turn was cancelled.",
                registry=registry,
            ),
            append_failures=Counter(
                "threadlog_runtime_append_failures",
                "Appends that the log did not acknowledge; they are tried again.",
                registry=registry,
            ),
            model_calls=Gauge("threadlog_runtime_model_calls", "Model calls under way.", registry=registry),
            model_seconds=Histogram(
                "threadlog_runtime_model_seconds",
                "Seconds from the start of a model call to its answer or failure.",
                buckets=MODEL_SECONDS,
                registry=registry,
            ),
            model_wait_seconds=Histogram(
                "threadlog_runtime_model_wait_seconds",
                "Seconds that a model call waited for a slot, because too many were under way.",
                buckets=WAIT_SECONDS,
                registry=registry,
            ),
            model_failures=Counter(
                "threadlog_runtime_model_failures",
                "Failed model calls, by whether a retry can help.",
                ["retriable"],
                registry=registry,
            ),
            tokens=Counter(
                "threadlog_runtime_tokens",
                "Tokens of model answers as providers count them, by direction.",
                ["direction"],
                registry=registry,
            ),
            takeovers=Counter(
                "threadlog_runtime_takeovers",
                "Turns taken over from another owner that left a step open.",
                registry=registry,
            ),
            quarantined=Gauge(
                "threadlog_runtime_quarantined_threads",
                "Threads set aside at the moment because folding or deciding failed.",
                registry=registry,
            ),
            refolded=Counter(
                "threadlog_runtime_refolded_threads",
                "Threads that were set aside and then read anew.",
                registry=registry,
            ),
            transcripts_loaded=Counter(
                "threadlog_runtime_transcripts_loaded",
                "Transcripts loaded, by source: items of the views, a scan of the partition, or items of parents.",
                ["source"],
                registry=registry,
            ),
            lag_records=Gauge(
                "threadlog_runtime_lag_records",
                "Records of the assigned partitions that are not read yet, at the last look.",
                registry=registry,
            ),
            lag_seconds=Gauge(
                "threadlog_runtime_lag_seconds",
                "Seconds since the log ended where this runtime is now, for the partition that is furthest behind.",
                registry=registry,
            ),
        )
        for value in BOOLEANS:
            made.model_failures.labels(value)
        for direction in DIRECTIONS:
            made.tokens.labels(direction)
        return made
