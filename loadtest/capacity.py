"""Searches the highest request rate at which enough requests still meet their limits."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one rate: goodput in requests per second, attainment as a share in [0, 1]."""

    rate_rps: float
    goodput_rps: float
    attainment: float
    saturation: str


@dataclass(frozen=True, slots=True)
class CapacitySearch:
    """From `first_rate_rps` up by doubling (or down by halving), then by bisection.

    Ends when the bracket is narrower than `precision` of its lower end or after `max_probes`.
    """

    target_attainment: float = 0.9
    first_rate_rps: float = 1.0
    precision: float = 0.1
    max_probes: int = 12

    def __post_init__(self) -> None:
        if not 0.0 < self.target_attainment <= 1.0:
            raise ValueError(
                f"target_attainment={self.target_attainment}: expected a share in (0, 1]"
            )
        if self.first_rate_rps <= 0 or self.precision <= 0 or self.max_probes < 1:
            raise ValueError("the first rate, precision and number of probes must be above 0")


@dataclass(frozen=True, slots=True)
class Capacity:
    """All probes in order, and the one with the highest rate that met the target (if any)."""

    probes: tuple[Probe, ...]
    best: Probe | None


def find_capacity(search: CapacitySearch, measure: Callable[[float], Probe]) -> Capacity:
    """Run `measure(rate)` until the capacity is bracketed as finely as wanted.

    The highest rate a system keeps at a target attainment is its goodput (DistServe, section 2).
    """
    probes: list[Probe] = []
    passed: Probe | None = None
    failed_rate: float | None = None
    rate = search.first_rate_rps
    while len(probes) < search.max_probes:
        probe = measure(rate)
        probes.append(probe)
        # A backlog that grows would break the limits in a longer run, even if not in this one.
        is_steady = probe.saturation != "growing_backlog"
        if is_steady and probe.attainment >= search.target_attainment:
            passed = probe
        else:
            failed_rate = rate
        if passed is None:
            rate /= 2.0
        elif failed_rate is None:
            rate *= 2.0
        elif failed_rate - passed.rate_rps <= search.precision * passed.rate_rps:
            break
        else:
            rate = (passed.rate_rps + failed_rate) / 2.0
    return Capacity(tuple(probes), passed)
