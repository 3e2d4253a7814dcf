"""What the projector counts of a batch, on a database in memory."""

from prometheus_client import CollectorRegistry

from schemas.ids import ThreadKey
from services.chassis.log.port import Incoming
from services.projector.applying.apply import Applier
from services.projector.metrics import ProjectorMetrics, RebuildMetrics
from services.projector.rebuilding.progress import Progress
from services.projector.settings import ProjectorSettings
from tests.support.memory.views import MemoryViews
from tests.support.recorded.bad_records import bad_records
from tests.support.recorded.histories import KEY, RUNTIME, START_MS, History, created
from tests.support.recorded.walks import as_read
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.stored.applying import publish_nothing

DELAY_MS = 250


class Clock:
    def now_ms(self) -> int:
        return START_MS + DELAY_MS


def home(_: ThreadKey) -> int:
    return 0


def records() -> list[Incoming]:
    """A thread with a second creation, and one record of each class that cannot be used."""
    history = History().idle()
    history.append(created(), RUNTIME)
    read = as_read(history)
    foreign = dict(read[0].headers) | {"ce_type": b"org.example.other.v1", "ce_actor": b"service:other"}
    good = history.encoded[0]
    bad = [
        Incoming(read[0].topic, 0, 0, START_MS, sent.key, sent.value, sent.headers)
        for sent in bad_records(KEY, good).values()
    ]
    unknown = read[0]._replace(headers=tuple(foreign.items()))
    return [
        record._replace(offset=offset, timestamp_ms=START_MS) for offset, record in enumerate([*read, unknown, *bad])
    ]


def test_a_rebuild_shows_how_far_it_is_and_then_that_it_is_done() -> None:
    registry = CollectorRegistry()
    metrics = RebuildMetrics.register(registry)

    def shown() -> list[float | None]:
        names = ("generation", "done_records", "log_records", "paused")
        return [registry.get_sample_value(f"threadlog_rebuild_{name}") for name in names]

    assert shown() == [0, 0, 0, 0]
    Progress("reading", 7, 40, 100, seconds=2, is_paused=True).show_in(metrics)
    assert shown() == [7, 40, 100, 1]
    Progress("done", 7, 100, 100, seconds=5).show_in(metrics)
    assert shown() == [0, 100, 100, 0]


@in_virtual_time
async def test_what_a_batch_came_to_is_counted_once_it_is_committed() -> None:
    registry, views = CollectorRegistry(), MemoryViews()
    metrics = ProjectorMetrics.register(registry)
    store = views.open(await views.live("cluster"))
    applier = Applier(store, home, publish_nothing, Clock(), ProjectorSettings(), metrics)
    applier.hold(await store.claim([0], "test", "cluster"))
    sent = records()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"threadlog_projector_{name}", labels)

    await applier.submit(sent)
    assert value("records_total", effect="applied", kind="thread.created") is None
    await applier.settle()
    assert value("records_total", effect="applied", kind="thread.created") == 1
    assert value("records_total", effect="superseded", kind="thread.created") == 1
    assert value("records_total", effect="ignored", kind="other") == 1  # any number of kinds is one series
    for fault in bad_records(KEY, History().idle().encoded[0]):
        assert value("dead_letters_total", fault=fault) == 1, fault
    assert value("dead_letters_total", fault="row_refused") == 0
    assert value("batch_records_sum") == value("delay_seconds_count") == len(sent)
    assert value("delay_seconds_bucket", le="0.2") == 0
    assert value("delay_seconds_bucket", le="0.3") == len(sent)
    assert value("delay_seconds_sum") == DELAY_MS * len(sent) / 1000
    assert value("write_seconds_count") == value("load_seconds_count") == 1
