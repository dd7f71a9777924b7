"""Draws lengths and pauses from the few shapes that real traffic is described with."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["fixed", "uniform", "exponential", "lognormal", "samples"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution over non-negative numbers, cut to [low, high].

    Parameters by kind: fixed (value,), uniform (least, most), exponential (mean,),
    lognormal (mean, sigma of the logarithm), samples (the values themselves).
    """

    kind: Kind
    parameters: tuple[float, ...]
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        wanted = {"fixed": 1, "uniform": 2, "exponential": 1, "lognormal": 2}.get(self.kind)
        if wanted is not None and len(self.parameters) != wanted:
            raise ValueError(f"{self.kind}{self.parameters}: expected {wanted} parameter(s)")
        if not self.parameters or min(self.parameters) < 0:
            raise ValueError(f"{self.kind}{self.parameters}: expected numbers of 0 or more")
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")

    def draw(self, rng: random.Random) -> float:
        """One value, cut to the bounds."""
        return min(max(self._draw(rng), self.low), self.high)

    def draw_tokens(self, rng: random.Random) -> int:
        """One length in whole tokens, at least 1."""
        return max(1, round(self.draw(rng)))

    def _draw(self, rng: random.Random) -> float:
        values = self.parameters
        match self.kind:
            case "fixed":
                return values[0]
            case "uniform":
                return rng.uniform(values[0], values[1])
            case "exponential":
                return rng.expovariate(1.0 / values[0]) if values[0] else 0.0
            case "lognormal":
                mean, sigma = values
                # The mean of a lognormal is exp(mu + sigma^2 / 2); solve for mu.
                return rng.lognormvariate(math.log(mean) - sigma * sigma / 2.0, sigma)
            case "samples":
                return rng.choice(values)


def fixed(value: float) -> Distribution:
    """Always `value`."""
    return Distribution("fixed", (value,))


def samples(values: Sequence[float]) -> Distribution:
    """Values as they occur in a trace, drawn with replacement."""
    return Distribution("samples", tuple(values))


def parse_distribution(text: str) -> Distribution:
    """Read `128`, `uniform:64,256`, `exponential:128@1-512` or `lognormal:128,0.8`.

    The part after @ cuts the values to a range. Raises ValueError naming the text.
    """
    body, _, bounds = text.partition("@")
    kind, _, numbers = body.rpartition(":")
    try:
        parameters = tuple(float(part) for part in numbers.split(","))
        low, high = 0.0, math.inf
        if bounds:
            first, _, last = bounds.partition("-")
            low, high = float(first), float(last)
        return _checked(kind or "fixed", parameters, low, high)
    except ValueError as error:
        raise ValueError(
            f"{text!r}: expected N, uniform:A,B, exponential:MEAN or lognormal:MEAN,SIGMA, "
            f"each with @LOW-HIGH after it if wanted ({error})"
        ) from error


def _checked(kind: str, parameters: tuple[float, ...], low: float, high: float) -> Distribution:
    match kind:
        case "fixed" | "uniform" | "exponential" | "lognormal":
            return Distribution(kind, parameters, low, high)
        case _:
            raise ValueError(f"unknown kind {kind!r}")
