"""A histogram that takes many values at once.

It is for what is observed once per record: the lock that the library takes for each value would cost more than the work
on the record.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BulkHistogram(Collector):
    """A histogram without locks. Only the event loop's thread may use it, which also answers Prometheus."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """Register the histogram. `buckets` are the upper bounds, ascending, without infinity."""
        self._name = name
        self._documentation = documentation
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, values: Iterable[float]) -> None:
        """Count values, each in the first bucket whose bound is not below it."""
        bounds, counts, total = self._bounds, self._counts, self._sum
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self._sum = total

    def collect(self) -> Iterator[Metric]:
        """Return the histogram in the library's form, in which each bucket includes the ones before it."""
        cumulated, so_far = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            so_far += count
            cumulated.append((str(floatToGoString(bound)), so_far))  # type: ignore[no-untyped-call]  # the library's own
        yield HistogramMetricFamily(self._name, self._documentation, buckets=cumulated, sum_value=self._sum)
