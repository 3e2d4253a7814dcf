from prometheus_client import CollectorRegistry, generate_latest

from services.ingest.live import LiveCounts
from services.ingest.metrics import IngestMetrics, LiveCollector


def test_live_counts_are_shown() -> None:
    registry = CollectorRegistry()
    counts = LiveCounts()
    LiveCollector(counts, registry)
    counts.watches, counts.cuts = 3, 2
    assert registry.get_sample_value("threadlog_ingest_live_streams") == 3
    assert registry.get_sample_value("threadlog_ingest_live_cuts_total") == 2


def test_every_metric_is_documented_where_it_is_named() -> None:
    registry = CollectorRegistry()
    IngestMetrics.build(registry)
    LiveCollector(LiveCounts(), registry)
    shown = {line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")}
    live = {name for name in shown if name.startswith("threadlog_ingest_live_")}
    assert live
    assert [name for name in sorted(live) if f"{name} " not in (LiveCollector.__doc__ or "")] == []
