"""Decides when requests arrive in an open loop, whatever the server does."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

RampStrategy = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A request rate that grows (or falls) from `start_rps` to `end_rps` over a run."""

    strategy: RampStrategy
    start_rps: float
    end_rps: float

    def __post_init__(self) -> None:
        least = min(self.start_rps, self.end_rps)
        if least < 0 or (self.strategy == "exponential" and least == 0):
            raise ValueError(
                f"ramp from {self.start_rps} to {self.end_rps}: expected positive rates"
            )

    def rate_at(self, progress: float) -> float:
        """Requests per second at `progress` in [0, 1] of the run."""
        progress = min(max(progress, 0.0), 1.0)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def steady_arrivals(rate_rps: float, *, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Offsets in seconds, without end, at a mean of `rate_rps`.

    Gaps are gamma distributed with shape `burstiness`: 1 is Poisson, below 1 comes in bursts,
    above 1 is more even, and infinity is a constant gap. An infinite rate sends all at once.
    The coefficient of variation of the gaps is 1 / sqrt(burstiness).
    """
    if rate_rps <= 0 or burstiness <= 0:
        raise ValueError(f"rate={rate_rps}, burstiness={burstiness}: expected more than 0")
    if math.isinf(rate_rps):
        yield from itertools.repeat(0.0)
        return
    at_s = 0.0
    for index in itertools.count():
        if math.isinf(burstiness):
            # Multiplying instead of adding up: no rounding piles up over a long run.
            at_s = index / rate_rps
        else:
            at_s += rng.gammavariate(burstiness, 1.0 / (rate_rps * burstiness))
        yield at_s


def ramp_over_requests(
    ramp: Ramp, num_requests: int, *, burstiness: float, rng: random.Random
) -> Iterator[float]:
    """Offsets in seconds; the rate follows `ramp` from the first of `num_requests` to the last."""
    at_s = 0.0
    for index in itertools.count():
        rate = ramp.rate_at((index + 0.5) / max(num_requests, 1))
        at_s += _unit_gap(burstiness, rng) / rate
        yield at_s


def ramp_over_time(
    ramp: Ramp, duration_s: float, *, burstiness: float, rng: random.Random
) -> Iterator[float]:
    """Offsets in seconds below `duration_s`; the rate follows `ramp` over that time.

    Unit-rate gaps are stretched through the integral of the rate, so that a gap drawn in a slow
    beginning does not reach over the faster part that follows it.
    """
    step_s = duration_s / 10_000.0
    at_s, need = 0.0, _unit_gap(burstiness, rng)
    while at_s < duration_s:
        rate = ramp.rate_at((at_s + step_s / 2.0) / duration_s)
        if need <= rate * step_s:
            at_s += need / rate
            need = _unit_gap(burstiness, rng)
            yield at_s
        else:
            need -= rate * step_s
            at_s += step_s


def _unit_gap(burstiness: float, rng: random.Random) -> float:
    if math.isinf(burstiness):
        return 1.0
    return rng.gammavariate(burstiness, 1.0 / burstiness)
