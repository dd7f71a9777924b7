"""Each arrival process has the rate and the irregularity it is named for."""

import itertools
import math
import random

import numpy as np
import pytest

from loadtest.arrivals import Ramp, ramp_over_requests, ramp_over_time, steady_arrivals


def gaps_of(rate: float, burstiness: float, count: int = 20_000) -> np.ndarray:
    times = steady_arrivals(rate, burstiness=burstiness, rng=random.Random(1))
    return np.diff([0.0, *itertools.islice(times, count)])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_and_spread_of_their_burstiness(burstiness: float) -> None:
    gaps = gaps_of(10.0, burstiness)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_counts_have_a_variance_equal_to_their_mean() -> None:
    times = list(itertools.islice(steady_arrivals(50, burstiness=1, rng=random.Random(2)), 50_000))
    counts, _ = np.histogram(times, bins=np.arange(0, int(times[-1])))
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


def test_infinite_burstiness_is_a_constant_gap_without_drift() -> None:
    times = steady_arrivals(3.0, burstiness=math.inf, rng=random.Random(0))
    assert list(itertools.islice(times, 3001))[-1] == pytest.approx(1000.0, abs=1e-9)


def test_an_infinite_rate_sends_all_at_once() -> None:
    times = steady_arrivals(math.inf, burstiness=1.0, rng=random.Random(0))
    assert list(itertools.islice(times, 3)) == [0.0, 0.0, 0.0]


def test_equal_seeds_give_equal_arrivals() -> None:
    first, second = (
        list(itertools.islice(steady_arrivals(5, burstiness=1, rng=random.Random(9)), 50))
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_over_time_sends_the_integral_of_its_rate(strategy: str) -> None:
    ramp = Ramp(strategy, 5.0, 80.0)  # type: ignore[arg-type]
    times = list(ramp_over_time(ramp, 100.0, burstiness=math.inf, rng=random.Random(3)))
    expected = 4250.0 if strategy == "linear" else 100.0 * 75.0 / math.log(16.0)
    assert len(times) == pytest.approx(expected, abs=2)
    early = sum(at < 20 for at in times)
    early_expected = 250.0 if strategy == "linear" else 100 * (8.7055 - 5) / math.log(16)
    assert early == pytest.approx(early_expected, abs=2)


def test_a_random_ramp_has_the_mean_of_the_even_one() -> None:
    ramp = Ramp("linear", 5.0, 80.0)
    times = list(ramp_over_time(ramp, 100.0, burstiness=1.0, rng=random.Random(3)))
    assert len(times) == pytest.approx(4250, rel=0.05)


def test_a_ramp_may_start_at_nothing() -> None:
    times = list(ramp_over_time(Ramp("linear", 0, 10), 20, burstiness=1, rng=random.Random(4)))
    assert len(times) == pytest.approx(100, rel=0.3)


def test_a_ramp_over_requests_goes_from_its_first_rate_to_its_last() -> None:
    times = ramp_over_requests(
        Ramp("linear", 10, 100), 1000, burstiness=math.inf, rng=random.Random(0)
    )
    gaps = np.diff(list(itertools.islice(times, 1000)))
    assert gaps[0] == pytest.approx(0.1, rel=0.05)
    assert gaps[-1] == pytest.approx(0.01, rel=0.05)


def test_an_exponential_ramp_from_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Ramp("exponential", 0, 10)
