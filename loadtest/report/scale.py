"""Maps values to places on a plot's axis, with round numbers for its ticks."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic axis from `low` to `high`, drawn from `begin` to `end` pixels."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """The pixel of a value; beyond the ends it stays at the end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, wanted: int) -> list[float]:
        """About `wanted` round values within the axis."""
        return self._log_ticks(wanted) if self.is_log else self._linear_ticks(wanted)

    def _linear_ticks(self, wanted: int) -> list[float]:
        step = round_step((self.high - self.low) / max(wanted, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_ticks(self, wanted: int) -> list[float]:
        if self.high / self.low < 8:
            # Within less than a decade the powers of ten leave an axis almost bare.
            return self._linear_ticks(wanted - 1)
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [d * 10.0**power for power in range(low, high + 1) for d in digits]
            inside = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(inside) <= wanted + 2:
                return inside
        step = math.ceil(len(inside) / wanted)
        return inside[::step]


def linear_scale(low: float, high: float, begin: float, end: float) -> Scale:
    """An axis with a little air above the highest value."""
    if high <= low:
        high = low + 1.0
    return Scale(low, low + (high - low) * 1.04, begin, end)


def log_scale(low: float, high: float, begin: float, end: float) -> Scale:
    """An axis over a factor of two to a thousand; smaller values lie at its low end."""
    low = max(low, high / 1000.0, 1e-3)
    high = max(high, low * 2.0)
    return Scale(low / 1.05, high * 1.05, begin, end, is_log=True)


def round_step(raw: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten, not below `raw` by much."""
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    for digit in (1.0, 2.0, 5.0, 10.0):
        if raw <= digit * power * 1.2:
            return digit * power
    return 10.0 * power


def short_number(value: float) -> str:
    """A number in as few letters as an axis has room for: 1.5k, 250, 0.2."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:.3g}" if size < 1000 else f"{value:.0f}"
