"""Feeds a replica's figures to Ray's own metrics, where a Prometheus made by KubeRay finds them.

Ray exports them from its node agents with the prefix ray_, and allows no colon in a name:
vllm:num_requests_running becomes ray_vllm_num_requests_running. Ray's histograms take single
observations, which would cost every step; of ours it gets sum and count, as counters.
"""

import time
from collections.abc import Callable, Iterable

from ray.util.metrics import Counter, Gauge

from cluster.metrics.catalogue import METRICS, Metric
from cluster.metrics.figures import LabelValues
from cluster.metrics.metric_report import MetricReport

EXPORT_INTERVAL_S = 5.0


class RayExport:
    """Takes reports as they are made and passes some on; a call costs well under a millisecond."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = EXPORT_INTERVAL_S,
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._exported_at = float("-inf")
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._told: dict[tuple[str, LabelValues], float] = {}

    def __call__(self, report: MetricReport) -> None:
        """Export a report, if the last export is long enough ago."""
        if self._clock() - self._exported_at < self._interval_s:
            return
        self._exported_at = self._clock()
        for series in report.series:
            metric = METRICS[series.name]
            labels = (*report.identity, *series.labels)
            if metric.kind == "gauge":
                self._gauge(metric).set(series.value, tags=_tags(metric, labels))
            elif metric.kind == "counter":
                self._advance(metric, metric.name, labels, series.value)
            else:
                self._advance(metric, f"{metric.name}_sum", labels, series.value)
                count = sum(series.bucket_counts)
                self._advance(metric, f"{metric.name}_count", labels, count)

    def _advance(self, metric: Metric, name: str, labels: LabelValues, total: float) -> None:
        """Ray counts increments, so it is told what came since it was told last."""
        more = total - self._told.get((name, labels), 0.0)
        if more > 0.0:
            self._counter(metric, name).inc(more, tags=_tags(metric, labels))
            self._told[(name, labels)] = total

    def _gauge(self, metric: Metric) -> Gauge:
        gauge = self._gauges.get(metric.name)
        if gauge is None:
            gauge = Gauge(ray_name(metric.name), metric.help, metric.every_label)
            self._gauges[metric.name] = gauge
        return gauge

    def _counter(self, metric: Metric, name: str) -> Counter:
        counter = self._counters.get(name)
        if counter is None:
            counter = Counter(ray_name(name), metric.help, metric.every_label)
            self._counters[name] = counter
        return counter


def ray_name(name: str) -> str:
    """A name that Ray takes; it puts ray_ before it, and _total behind a counter's."""
    return name.replace(":", "_")


def _tags(metric: Metric, labels: Iterable[str]) -> dict[str, str]:
    return dict(zip(metric.every_label, labels, strict=True))
