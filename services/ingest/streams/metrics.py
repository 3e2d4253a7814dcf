"""What the streams count, in the form that Prometheus reads."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.ingest.streams.live import LiveCounts


class LiveCollector(Collector):
    """Turns the streams' counts into metrics when Prometheus asks, so that the hot path counts plain integers."""

    def __init__(self, counts: LiveCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        for name, help_text, value in (
            ("streams", "Open streams.", counts.watches),
            ("threads", "Threads that are folded because somebody watches them.", counts.threads),
            (
                "ring_bytes",
                "Bytes of the newest records, kept for streams that start a little behind the end of the log.",
                counts.ring_bytes,
            ),
        ):
            yield GaugeMetricFamily(f"threadlog_ingest_live_{name}", help_text, value=value)
        for name, help_text, value in (
            ("records_read", "Records of all threads that were read for the streams.", counts.records_read),
            ("records_folded", "Records of watched threads that were folded.", counts.records_folded),
            (
                "progress",
                "Pieces of progress, such as deltas of a model's answer, that were sent to streams.",
                counts.progress_forwarded,
            ),
            (
                "database_free_starts",
                "Watches that began without a query of the database.",
                counts.starts_without_database,
            ),
            (
                "catch_ups",
                "Watches that began so far behind the end of the log that they read it themselves.",
                counts.catch_ups,
            ),
            ("cuts", "Streams that were ended because their client could not keep up.", counts.cuts),
            ("folds_failed", "Records whose fold raised an error, which is always a bug.", counts.folds_failed),
        ):
            yield CounterMetricFamily(f"threadlog_ingest_live_{name}", help_text, value=value)
