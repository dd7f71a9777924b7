"""The numbers that one process keeps: counters, gauges and histograms of the catalogue.

Plain objects without locks, for one event loop: an observation costs a binary search and three
additions, so that it can be made for every token. prometheus_client only writes the text.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.metrics.catalogue import METRICS, Kind, Metric, Origin

LabelValues = tuple[str, ...]


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        assert amount >= 0.0, amount
        self.value += amount

    def advance_to(self, total: float) -> None:
        """Take over a total that somebody else counts."""
        self.value = max(self.value, total)


class Histogram:
    """Observations counted by size. counts: one for each bucket, not summed up, infinity last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one histogram, at one moment.

    labels: values of the metric's own labels. value: of a histogram, the sum of observations.
    """

    name: str
    labels: LabelValues
    value: float
    bucket_counts: tuple[int, ...] = ()


class Figures:
    """Every series of one process. Metrics without labels of their own exist from the start.

    Raises KeyError for a name that the catalogue does not have for this origin and kind.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._counters: dict[tuple[str, LabelValues], Counter] = {}
        self._histograms: dict[tuple[str, LabelValues], Histogram] = {}
        self._gauges: dict[str, dict[LabelValues, float]] = {}
        for metric in METRICS.values():
            if metric.origin == origin and not metric.labels:
                self._create(metric)

    def counter(self, name: str, *labels: str) -> Counter:
        """The counter with these label values, made when it is first asked for."""
        found = self._counters.get((name, labels))
        if found is None:
            self._check(name, "counter", labels)
            found = self._counters[(name, labels)] = Counter()
        return found

    def histogram(self, name: str, *labels: str) -> Histogram:
        """The histogram with these label values, made when it is first asked for."""
        found = self._histograms.get((name, labels))
        if found is None:
            metric = self._check(name, "histogram", labels)
            found = self._histograms[(name, labels)] = Histogram(metric.buckets)
        return found

    def set(self, name: str, value: float, *labels: str) -> None:
        """Give a gauge its value."""
        self._check(name, "gauge", labels)
        self._gauges.setdefault(name, {})[labels] = value

    def set_all(self, name: str, values: Mapping[LabelValues, float]) -> None:
        """Give a gauge all its values; those of other labels are forgotten."""
        for labels in values:
            self._check(name, "gauge", labels)
        self._gauges[name] = dict(values)

    def series(self) -> tuple[Series, ...]:
        """Every series as it stands now."""
        counters = [Series(*key, counter.value) for key, counter in self._counters.items()]
        gauges = [
            Series(name, labels, value)
            for name, values in self._gauges.items()
            for labels, value in values.items()
        ]
        histograms = [
            Series(*key, histogram.total, tuple(histogram.counts))
            for key, histogram in self._histograms.items()
        ]
        return (*counters, *gauges, *histograms)

    def _create(self, metric: Metric) -> None:
        if metric.kind == "counter":
            self.counter(metric.name)
        elif metric.kind == "histogram":
            self.histogram(metric.name)
        else:
            self.set(metric.name, 0.0)

    def _check(self, name: str, kind: Kind, labels: LabelValues) -> Metric:
        metric = METRICS.get(name)
        if metric is None or metric.kind != kind or metric.origin != self._origin:
            raise KeyError(f"{name} is no {kind} of a {self._origin}")
        assert len(labels) == len(metric.labels), (name, labels)
        return metric
