from prometheus_client import CollectorRegistry, Histogram, generate_latest

from services.chassis.process.bulk_histogram import BulkHistogram

BUCKETS = (0.1, 1.0, 2.5)
VALUES = (0.05, 0.1, 0.11, 2.5, 99.0)


def test_it_shows_what_the_library_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bulk = BulkHistogram("delay_seconds", "A delay.", BUCKETS, ours)
    single = Histogram("delay_seconds", "A delay.", buckets=BUCKETS, registry=theirs)
    bulk.observe(VALUES)
    bulk.observe([])
    for value in VALUES:
        single.observe(value)
    shown = generate_latest(theirs).decode().splitlines()
    assert generate_latest(ours).decode().splitlines() == [line for line in shown if "_created" not in line]
