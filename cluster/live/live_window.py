"""Figures of a short while: rates from totals that grow, and percentiles of the last minute."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

RATE_WINDOW_S = 2.0
LATENCY_WINDOW_S = 60.0
MAX_SAMPLES = 20_000


class RateWindow:
    """Growth per second of a total, over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> float:
        """Take in the total at `now`; returns its growth per second, 0.0 for a first one.

        A total that shrank belongs to another engine core: the window starts again.
        """
        if self._totals and total < self._totals[-1][1]:
            self._totals.clear()
        self._totals.append((now, total))
        while len(self._totals) > 2 and self._totals[1][0] <= now - RATE_WINDOW_S:
            self._totals.popleft()
        (began_at, first), (_, last) = self._totals[0], self._totals[-1]
        return (last - first) / (now - began_at) if now > began_at else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `num` durations, in seconds."""

    num: int
    p50: float
    p90: float
    p99: float


class LatencyWindow:
    """Durations seen in the last LATENCY_WINDOW_S."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now: float, durations_s: Iterable[float]) -> None:
        """They were seen at `now`."""
        self._samples.extend((now, duration_s) for duration_s in durations_s)

    def recent(self, now: float) -> list[float]:
        """Those not too old at `now`, in the order in which they came."""
        while self._samples and self._samples[0][0] < now - LATENCY_WINDOW_S:
            self._samples.popleft()
        return [duration_s for _, duration_s in self._samples]


def percentiles(durations_s: Iterable[float]) -> Percentiles | None:
    """None when there are none; each is a duration that really occurred (nearest rank)."""
    ordered = sorted(durations_s)
    if not ordered:
        return None

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Percentiles(len(ordered), at(0.5), at(0.9), at(0.99))
