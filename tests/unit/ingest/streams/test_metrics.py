from prometheus_client import CollectorRegistry

from services.ingest.streams.live import LiveCounts
from services.ingest.streams.metrics import LiveCollector


def test_live_counts_are_shown() -> None:
    registry = CollectorRegistry()
    counts = LiveCounts()
    LiveCollector(counts, registry)
    counts.watches, counts.cuts = 3, 2
    assert registry.get_sample_value("threadlog_ingest_live_streams") == 3
    assert registry.get_sample_value("threadlog_ingest_live_cuts_total") == 2
