"""Lengths are drawn with the mean, spread and bounds they were asked for."""

import random

import numpy as np
import pytest

from loadtest.distribution import parse_distribution, samples


def draws(text: str, count: int = 20_000) -> np.ndarray:
    rng = random.Random(5)
    distribution = parse_distribution(text)
    return np.array([distribution.draw(rng) for _ in range(count)])


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("128", 128, 0),
        ("uniform:100,200", 150, 28.87),
        ("exponential:64", 64, 64),
        ("lognormal:200,0.5", 200, 106.6),
    ],
)
def test_a_distribution_has_its_mean_and_spread(text: str, mean: float, std: float) -> None:
    values = draws(text)
    assert values.mean() == pytest.approx(mean, rel=0.03)
    assert values.std() == pytest.approx(std, rel=0.06, abs=1e-9)


def test_bounds_cut_both_ends() -> None:
    values = draws("exponential:64@10-100")
    assert (values.min(), values.max()) == (10, 100)


def test_token_lengths_are_whole_and_at_least_one() -> None:
    rng = random.Random(0)
    tiny = parse_distribution("exponential:0.1")
    assert {tiny.draw_tokens(rng) for _ in range(200)} <= {1}


def test_samples_come_from_the_given_values_only() -> None:
    rng = random.Random(0)
    assert {samples([3, 7]).draw(rng) for _ in range(100)} == {3, 7}


@pytest.mark.parametrize("text", ["", "zipf:2", "uniform:1", "fixed:-3", "exponential:5@9-1"])
def test_a_bad_distribution_names_itself(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        parse_distribution(text)
