"""What the live side counts, read when Prometheus asks."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.ingest.live import LiveCounts


class LiveCollector(Collector):
    """threadlog_live_records_read_total               records of thread-events that passed the live reader
    threadlog_live_records_folded_total             those of watched threads
    threadlog_live_progress_forwarded_total         deltas and tool output shown to watched threads
    threadlog_live_starts_without_database_total    threads whose fold began without a query
    threadlog_live_catch_ups_total                  readers that fetched what the ring did not hold
    threadlog_live_cuts_total                       streams that were too slow
    threadlog_live_folds_failed_total               threads whose fold raised: a bug
    threadlog_live_streams                          open now
    threadlog_live_threads                          folded now
    threadlog_live_ring_bytes                       of the newest records in memory
    """

    def __init__(self, counts: LiveCounts, registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        counts = self._counts
        for name, help_text, total in (
            ("records_read", "records that passed the live reader", counts.records_read),
            ("records_folded", "records of watched threads", counts.records_folded),
            ("progress_forwarded", "deltas and tool output shown", counts.progress_forwarded),
            ("starts_without_database", "threads whose fold began without a query", counts.starts_without_database),
            ("catch_ups", "readers that fetched what the ring did not hold", counts.catch_ups),
            ("cuts", "streams that were too slow", counts.cuts),
            ("folds_failed", "threads whose fold raised", counts.folds_failed),
        ):
            yield CounterMetricFamily(f"threadlog_live_{name}", help_text, value=total)
        for name, help_text, now in (
            ("streams", "streams open now", counts.watches),
            ("threads", "threads folded now", counts.threads),
            ("ring_bytes", "bytes of the newest records in memory", counts.ring_bytes),
        ):
            yield GaugeMetricFamily(f"threadlog_live_{name}", help_text, value=now)
