"""All figures of one process at one moment, and their form on the token stream.

Gateways and replicas send each other such reports, so that every gateway can show the whole
cluster. A report of another version may hold names this one lacks, or other buckets: those
series are left out, the others are kept.
"""

from dataclasses import dataclass

from cluster.metrics.catalogue import IDENTITY_LABELS, METRICS, Origin
from cluster.metrics.figures import Series
from cluster.wire import token_stream_pb2 as wire

# Ten times what a gateway that sees a hundred replicas has to say.
MAX_REPORT_BYTES = 256 * 1024

_ORIGINS: dict[str, Origin] = {"gateway": "gateway", "replica": "replica"}


@dataclass(frozen=True, slots=True)
class MetricReport:
    """One process's series. `number` grows with every report of its source.

    identity: values of the labels that its origin gives every series, the source's id first.
    """

    origin: Origin
    identity: tuple[str, ...]
    number: int
    series: tuple[Series, ...]

    @property
    def source(self) -> str:
        """Whose figures these are."""
        return self.identity[0]


def encode_metric_report(report: MetricReport) -> wire.MetricReport:
    """A message; may be larger than MAX_REPORT_BYTES, which its sender has to look at."""
    return wire.MetricReport(
        origin=report.origin,
        identity=report.identity,
        number=report.number,
        series=[
            wire.MetricSeries(
                name=series.name,
                labels=series.labels,
                value=series.value,
                bucket_counts=series.bucket_counts,
            )
            for series in report.series
        ],
    )


def decode_metric_report(message: wire.MetricReport) -> MetricReport | None:
    """The report, less what this version does not know; None if it is of no known origin."""
    origin = _ORIGINS.get(message.origin)
    if origin is None or len(message.identity) != len(IDENTITY_LABELS[origin]):
        return None
    series = tuple(
        Series(one.name, tuple(one.labels), one.value, tuple(one.bucket_counts))
        for one in message.series
        if _fits(one, origin)
    )
    return MetricReport(origin, tuple(message.identity), message.number, series)


def _fits(series: wire.MetricSeries, origin: Origin) -> bool:
    metric = METRICS.get(series.name)
    if metric is None or metric.origin != origin or len(series.labels) != len(metric.labels):
        return False
    num_counts = len(metric.buckets) + 1 if metric.kind == "histogram" else 0
    return len(series.bucket_counts) == num_counts
