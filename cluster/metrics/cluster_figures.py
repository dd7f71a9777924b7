"""What one gateway knows of every process's figures, and the text that Prometheus scrapes."""

from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from cluster.metrics.catalogue import CATALOGUE, METRICS
from cluster.metrics.catalogue import Metric as Definition
from cluster.metrics.metric_report import MetricReport

# A process that was silent this long has gauges that mean nothing any more.
GAUGES_FOR_S = 10.0
# Totals stay longer, so that a break of the streams is no gap in a rate.
TOTALS_FOR_S = 300.0
MAX_SOURCES = 1024

_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSION = "1.0.0"

ReportKey = tuple[str, str]


class ClusterFigures:
    """The newest report of each process. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._reports: dict[ReportKey, MetricReport] = {}
        self._heard_at: dict[ReportKey, float] = {}

    def take(self, report: MetricReport, now: float) -> bool:
        """Keep a report if it is newer than what is known of its source."""
        key = (report.origin, report.source)
        known = self._reports.get(key)
        if known is not None and known.number >= report.number:
            return False
        if known is None and len(self._reports) >= MAX_SOURCES:
            return False
        self._reports[key] = report
        self._heard_at[key] = now
        return True

    def reports(self, now: float) -> tuple[MetricReport, ...]:
        """What is still worth showing; sources that were silent for long are forgotten."""
        for key, heard_at in list(self._heard_at.items()):
            if now - heard_at > TOTALS_FOR_S:
                del self._reports[key], self._heard_at[key]
        return tuple(
            report if now - self._heard_at[key] <= GAUGES_FOR_S else _without_gauges(report)
            for key, report in self._reports.items()
        )


def exposition(reports: Sequence[MetricReport], accept: str) -> tuple[bytes, str]:
    """The scrape's body and content type, in the format that the Accept header asks for.

    Takes some 10 microseconds a line: run it in a thread.
    """
    collected = _Collected(reports)
    if _OPENMETRICS not in accept:
        return generate_latest(collected), CONTENT_TYPE_PLAIN_0_0_4
    # Any other escaping of the library's takes the colons out of vLLM's names, which the format
    # allows; Prometheus 2 asks for this format first and would then know no metric of a board.
    text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
        collected, escaping=openmetrics.ALLOWUTF8, version=_OPENMETRICS_VERSION
    )
    return text, f"{_OPENMETRICS}; version={_OPENMETRICS_VERSION}; charset=utf-8"


class _Collected(Collector):
    """The reports as prometheus_client wants to be given metrics."""

    def __init__(self, reports: Sequence[MetricReport]) -> None:
        self._reports = reports

    def collect(self) -> Iterable[Metric]:
        """One family for each metric that has a series, in the catalogue's order."""
        families: dict[str, Metric] = {metric.name: _family(metric) for metric in CATALOGUE}
        for report in self._reports:
            for series in report.series:
                labels = (*report.identity, *series.labels)
                family = families[series.name]
                if isinstance(family, HistogramMetricFamily):
                    bounds = METRICS[series.name].buckets
                    family.add_metric(labels, _buckets(bounds, series.bucket_counts), series.value)
                elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
                    family.add_metric(labels, series.value)
        return [family for family in families.values() if family.samples]


def _family(metric: Definition) -> Metric:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.every_label)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.name, metric.help, labels=metric.every_label)
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.every_label)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    so_far = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*bounds, inf), counts, strict=True):
        so_far += count
        buckets.append(("+Inf" if bound == inf else str(bound), float(so_far)))
    return buckets


def _without_gauges(report: MetricReport) -> MetricReport:
    kept = tuple(s for s in report.series if METRICS[s.name].kind != "gauge")
    return MetricReport(report.origin, report.identity, report.number, kept)
