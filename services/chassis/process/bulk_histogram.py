"""A histogram that takes many values at once: for what is counted once per record, where a metric's lock would cost
more than the record.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BulkHistogram(Collector):
    """For one thread: that of the event loop, which also answers Prometheus."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """`buckets`: upper bounds, ascending, without infinity."""
        self._name = name
        self._documentation = documentation
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, values: Iterable[float]) -> None:
        bounds, counts, total = self._bounds, self._counts, self._sum
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self._sum = total

    def collect(self) -> Iterator[Metric]:
        cumulated, so_far = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            so_far += count
            cumulated.append((str(floatToGoString(bound)), so_far))  # type: ignore[no-untyped-call]  # the library's own
        yield HistogramMetricFamily(self._name, self._documentation, buckets=cumulated, sum_value=self._sum)
