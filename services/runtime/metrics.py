from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    """All metrics of the runtime."""

    decisions: Counter
    """Events decided, by kind."""
    answers_superseded: Counter
    """Model answers that came too late to be of use."""
    append_failures: Counter
    model_calls: Gauge
    model_seconds: Histogram
    model_failures: Counter
    """By whether another try can help."""
    tokens: Counter
    """By direction."""
    takeovers: Counter
    """Turns found with an open step on taking over a partition."""
    quarantined: Gauge
    refolded: Counter
    """Threads that were set aside and then read anew."""
    transcripts_loaded: Counter
    """By source: items or scan."""

    @classmethod
    def register(cls, registry: CollectorRegistry) -> "RuntimeMetrics":
        return cls(
            Counter("threadlog_runtime_decisions", "Events decided", ["kind"], registry=registry),
            Counter("threadlog_runtime_answers_superseded", "Model answers that lost", registry=registry),
            Counter("threadlog_runtime_append_failures", "Appends that failed", registry=registry),
            Gauge("threadlog_runtime_model_calls", "Model calls under way", registry=registry),
            Histogram("threadlog_runtime_model_seconds", "Seconds of model calls", registry=registry),
            Counter("threadlog_runtime_model_failures", "Failed model calls", ["retriable"], registry=registry),
            Counter("threadlog_runtime_tokens", "Tokens as providers count them", ["direction"], registry=registry),
            Counter("threadlog_runtime_takeovers", "Open steps found on takeover", registry=registry),
            Gauge("threadlog_runtime_quarantined_threads", "Threads set aside", registry=registry),
            Counter("threadlog_runtime_refolded_threads", "Threads set aside and read anew", registry=registry),
            Counter("threadlog_runtime_transcripts_loaded", "Cold transcripts loaded", ["source"], registry=registry),
        )
