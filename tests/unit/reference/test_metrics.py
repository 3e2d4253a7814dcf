import re
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from reference.metrics import PROCESS, MetricReference, page, reference

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
UNITS = ("_seconds", "_bytes", "_records")
OF_ALL_TENANTS = {"tenant", "thread", "key", "input", "call", "id", "subject"}


def everything() -> list[MetricReference]:
    return [metric for section in reference() for metric in section.metrics]


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m reference.metrics > docs/metrics.md"


def test_each_metric_is_there_once_and_says_what_it_means() -> None:
    names = [metric.name for metric in everything()]
    assert len(names) == len(set(names)) > 60
    assert [metric for metric in everything() if not re.fullmatch(r"[A-Z1].*\.", metric.help)] == []


def test_names_are_as_prometheus_wants_them() -> None:
    for metric in everything():
        assert re.fullmatch(r"(threadlog|process)_[a-z_]+", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        if metric.kind == "histogram":
            assert metric.name.endswith(UNITS), metric
        assert not re.search(r"_(ms|milliseconds|kb|mb|percent)(_|$)", metric.name), metric


def test_no_metric_grows_with_tenants_or_threads() -> None:
    assert [metric for metric in everything() if OF_ALL_TENANTS & set(metric.labels)] == []


def test_what_the_page_says_of_processes_is_what_the_library_shows() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    shown = {sample.name for family in registry.collect() for sample in family.samples}
    assert shown == set() or {name for name, _, _ in PROCESS} <= shown
