"""The shape of a metric's definition, for the files that define them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Origin = Literal["gateway", "replica"]

# Labels that every series of a process bears, before the metric's own.
IDENTITY_LABELS: dict[Origin, tuple[str, ...]] = {
    "gateway": ("gateway", "model_name"),
    "replica": ("replica", "pool", "model_name"),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. Counters are defined without `_total` and exposed with it.

    moments: what is measured, as a difference of the moments that docs/metrics.md names; empty
        for what is not a span of time. labels: the metric's own, beside those of its origin.
    buckets: upper bounds of a histogram, without the infinite one.
    """

    name: str
    kind: Kind
    origin: Origin
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    moments: str = ""

    @property
    def exposed_name(self) -> str:
        """The name in a query: with `_total` if it is a counter."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def every_label(self) -> tuple[str, ...]:
        """The labels of its series, in the order of their values."""
        return (*IDENTITY_LABELS[self.origin], *self.labels)


def count(origin: Origin, name: str, unit: str, help: str, *labels: str) -> Metric:
    """A counter with labels of its own."""
    return Metric(name, "counter", origin, unit, help, labels)


def gauge(origin: Origin, name: str, unit: str, help: str, *labels: str) -> Metric:
    """A gauge with labels of its own."""
    return Metric(name, "gauge", origin, unit, help, labels)
