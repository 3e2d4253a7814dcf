from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest

from services.ingest.live import LiveCounts
from services.ingest.live_metrics import LiveCollector


def test_everything_counted_is_shown_and_documented() -> None:
    counts = LiveCounts(**{field.name: number for number, field in enumerate(fields(LiveCounts), 100)})
    registry = CollectorRegistry()
    LiveCollector(counts, registry)
    shown = {
        line.split()[0]: float(line.split()[1])
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    }
    assert sorted(shown.values()) == [float(100 + number) for number in range(len(fields(LiveCounts)))]
    assert all(name in (LiveCollector.__doc__ or "") for name in shown)
