"""docs/metrics.md from the metrics that the services register: `python -m reference.metrics >
docs/metrics.md`. A test compares, and the alert rules and dashboards in deploy/ may name these metrics alone.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from services.chassis.log.metrics import LogCollector, LogCounts
from services.chassis.process.metrics import CommonMetrics
from services.ingest.metrics import IngestMetrics
from services.ingest.streams.live import LiveCounts
from services.ingest.streams.metrics import LiveCollector
from services.projector.metrics import ProjectorMetrics, RollupsMetrics
from services.runtime.metrics import RuntimeMetrics
from services.tool_executor.metrics import ExecutorMetrics

INTRODUCTION = """# Metrics

What each service shows at `/metrics` on its probes port, for Prometheus. `deploy/prometheus` has rules for alerts made
of them ([alerts.md](alerts.md) says what to do), `deploy/grafana` dashboards.

- Names end in their unit (`_seconds`, `_bytes`, `_records`); a counter's in `_total`. A histogram `x` shows `x_bucket`,
  `x_sum` and `x_count`.
- No metric names a tenant or a thread: there may be any number of them. Numbers per tenant and minute are in
  `GET /v1/ops/windows`; what is stuck, by thread, in `GET /v1/ops/stuck`. Each label has few values, of a set that the
  release or the operator's configuration fixes.
- Counters begin at 0 with each process. Gauges are of the process, unless they say that they are of all tenants: those
  every ingest shows alike, so take the maximum, not the sum.
- A lag in seconds is how long ago the log ended where the reader is now: it needs no clock but the reader's own. It is
  exact to 5 s, the pause between two looks; after a start it counts from the first look.
"""

PROCESS = (
    ("process_cpu_seconds_total", "counter", "CPU time of the process, user and system."),
    ("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM."),
    ("process_start_time_seconds", "gauge", "When the process was started, in seconds since 1970."),
    ("process_open_fds", "gauge", "Open files and connections of the process."),
    ("process_max_fds", "gauge", "How many of them it may have."),
)
"""What the library shows of a process, where the system tells: not on every one, so they are named here."""

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


class MetricReference(NamedTuple):
    name: str
    """Return the metric's name as it is shown; a histogram's without its suffixes."""
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that queries use."""
        if self.kind == "counter":
            return (self.name,)
        return tuple([f"{self.name}{suffix}" for suffix in SUFFIXES[self.kind]])


class ServiceMetrics(NamedTuple):
    title: str
    services: tuple[str, ...]
    metrics: tuple[MetricReference, ...]


class _Listing(CollectorRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


Register = Callable[[CollectorRegistry], object]


def _common(registry: CollectorRegistry) -> None:
    CommonMetrics.register(registry, "any")
    LogCollector(LogCounts(), registry)


def _ingest(registry: CollectorRegistry) -> None:
    IngestMetrics.build(registry)
    LiveCollector(LiveCounts(), registry)


SECTIONS: Sequence[tuple[str, tuple[str, ...], Register]] = (
    ("Every service", ("ingest", "runtime", "tool-executor", "projector", "rollups"), _common),
    ("ingest", ("ingest",), _ingest),
    ("runtime", ("runtime",), RuntimeMetrics.register),
    ("tool-executor", ("tool-executor",), ExecutorMetrics.register),
    ("projector", ("projector",), ProjectorMetrics.register),
    ("rollups", ("rollups",), RollupsMetrics.register),
)


@cache
def reference() -> tuple[ServiceMetrics, ...]:
    return tuple([ServiceMetrics(title, services, _listed(register)) for title, services, register in SECTIONS])


def _listed(register: Register) -> tuple[MetricReference, ...]:
    registry = _Listing()
    register(registry)
    ours = [collector for collector in registry.collectors if not isinstance(collector, ProcessCollector)]
    metrics = [metric for collector in ours for metric in _of(collector)]
    return tuple(metrics if len(ours) == len(registry.collectors) else [*metrics, *_of_processes()])


def _of_processes() -> Iterator[MetricReference]:
    for name, kind, help_text in PROCESS:
        yield MetricReference(name, kind, (), help_text)


def _of(collector: Any) -> Iterator[MetricReference]:
    # The library shows labels only of what was counted already.
    labels = tuple(getattr(collector, "_labelnames", ()))
    for family in collector.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield MetricReference(name, family.type, labels, family.documentation)


def page() -> str:
    lines = [INTRODUCTION]
    for title, _, metrics in reference():
        lines += [f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
        for name, kind, labels, help_text in metrics:
            lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {help_text} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
