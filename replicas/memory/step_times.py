"""Learns what a step takes from what it computes: a fixed part, and a part per operation.

A step reads every weight however few tokens it has, so a short prefill costs far more than its
operations alone (a decoder of 135M parameters on two cores: 19 ms for one token, 0.6 ms for each
further one). Least squares over the engine's own steps, newer ones counting more.
"""

import math
from collections.abc import Callable

_HALF_LIFE_S = 30.0


class StepTimes:
    """seconds = fixed_s + operations / rate, of late. clock: monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._updated_at = clock()
        self._weight = self._x = self._t = self._xx = self._xt = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there was a step."""
        return self._x > 0.0

    def record(self, operations: float, *, seconds: float) -> None:
        """One step; one that took no time says nothing."""
        if operations <= 0.0 or seconds <= 0.0:
            return
        now = self._clock()
        kept = math.exp(-math.log(2.0) * (now - self._updated_at) / _HALF_LIFE_S)
        self._updated_at = now
        self._weight = self._weight * kept + 1.0
        self._x = self._x * kept + operations
        self._t = self._t * kept + seconds
        self._xx = self._xx * kept + operations * operations
        self._xt = self._xt * kept + operations * seconds

    def fixed_s(self) -> float:
        """What a step takes beside its operations; 0 as long as all steps were alike."""
        return self._fit()[0]

    def rate(self) -> float:
        """Operations per second beyond the fixed part; asserts `is_known`."""
        return self._fit()[1]

    def _fit(self) -> tuple[float, float]:
        assert self.is_known, "no step was measured"
        spread = self._weight * self._xx - self._x * self._x
        # Steps of one size, but for rounding, do not tell the two parts apart.
        if spread > 1e-6 * self._weight * self._xx:
            slope = (self._weight * self._xt - self._x * self._t) / spread
            fixed_s = (self._t - slope * self._x) / self._weight
            if slope > 0.0 and fixed_s > 0.0:
                return fixed_s, 1.0 / slope
        return 0.0, self._x / self._t
