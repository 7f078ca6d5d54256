"""Histograms that take the figures of a whole batch at once.

prometheus_client's own takes a lock and walks its buckets for every observation, which costs more than the checks of a
request do. Here a batch of observations is one call, one lock and a bisection for each.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Counts(NamedTuple):
    """bounds: upper bounds, inclusive, ascending. counts: one for each bound and one for what is above them."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float

    @property
    def observations(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """The value that a share q of the observations does not exceed, linear within its bucket; NaN for none.

        What lies above the last bound is given as the last bound, as PromQL's histogram_quantile does.
        """
        rank, below, lower = q * self.observations, 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (bound - lower) * max(0.0, rank - below) / count
            below, lower = below + count, bound
        return self.bounds[-1] if self.observations else float("nan")


class Histogram:
    """One series. Any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """One observation."""
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Many observations for the price of one lock."""
        bounds, counts = self._bounds, self._counts
        if len(values) > len(bounds):
            self._observe_many(sorted(values))
            return
        with self._lock:
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            self._sum += sum(values)

    def _observe_many(self, ordered: Sequence[float]) -> None:
        """A search for each bound instead of one for each value."""
        counts, below = self._counts, 0
        with self._lock:
            for at, bound in enumerate(self._bounds):
                upto = bisect_right(ordered, bound, below)
                counts[at] += upto - below
                below = upto
                if below == len(ordered):
                    break
            counts[-1] += len(ordered) - below
            self._sum += sum(ordered)

    def read(self) -> Counts:
        """What was observed until now."""
        with self._lock:
            return Counts(self._bounds, tuple(self._counts), self._sum)


class HistogramFamily(Collector):
    """Every series of one name, as prometheus_client would show them."""

    def __init__(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._help, self._labels, self._bounds = name, help, labels, tuple(map(float, bounds))
        self._series: dict[tuple[str, ...], Histogram] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def labels(self, *values: str) -> Histogram:
        """The series of these label values. Keep it: looking it up costs more than observing."""
        with self._lock:
            series = self._series.get(values)
            if series is None:
                series = self._series[values] = Histogram(self._bounds)
            return series

    def read(self) -> list[tuple[Mapping[str, str], Counts]]:
        """(label name -> value, counts) of every series."""
        with self._lock:
            series = list(self._series.items())
        return [(dict(zip(self._labels, values, strict=True)), each.read()) for values, each in series]

    def describe(self) -> Iterable[Metric]:
        """The name alone, for the registry."""
        return [HistogramMetricFamily(self._name, self._help, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """The family in Prometheus' terms: buckets are cumulative there."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for labels, counts in self.read():
            buckets, total = [], 0
            for bound, count in zip((*counts.bounds, float("inf")), counts.counts, strict=True):
                total += count
                buckets.append((floatToGoString(bound), total))
            family.add_metric(tuple(labels.values()), buckets, counts.sum)
        return [family]


def added(counts: Iterable[Counts]) -> Counts | None:
    """Several series of one family as one; None when there is none."""
    total: Counts | None = None
    for each in counts:
        total = (
            each
            if total is None
            else Counts(
                each.bounds,
                tuple(a + b for a, b in zip(total.counts, each.counts, strict=True)),
                total.sum + each.sum,
            )
        )
    return total
