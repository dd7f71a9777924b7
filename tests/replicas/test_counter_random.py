"""The random number of a token follows from seed, choice and position, and is uniform."""

import numpy as np

from replicas.counter_random import uniforms


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_same_counter_gives_the_same_number_in_any_company() -> None:
    alone = uniforms([7], [1], [30])
    among = uniforms([1, 7, 9], [0, 1, 1], [30, 30, 30])
    assert among[1] == alone[0]


def test_seed_choice_and_position_each_change_the_number() -> None:
    numbers = uniforms([7, 8, 7, 7], [1, 1, 2, 1], [30, 30, 30, 31])
    assert len(set(numbers.tolist())) == 4


def test_seeds_of_any_size_and_sign_are_taken() -> None:
    numbers = uniforms([-1, 2**64 - 1, 2**63, 2**70], [0] * 4, [0] * 4)
    assert numbers[0] == numbers[1]
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_numbers_along_positions_seeds_and_choices_are_uniform() -> None:
    count = 64_000
    ramp, fixed = np.arange(count), np.full(count, 5)
    for counters in ((ramp, fixed, fixed), (fixed, ramp, fixed), (fixed, fixed, ramp)):
        counts, _ = np.histogram(uniforms(*counters), bins=64, range=(0, 1))
        # 63 degrees of freedom: 103 is passed by chance once in a thousand.
        assert chi_square(counts) < 103


def test_neighbouring_positions_are_not_correlated() -> None:
    numbers = uniforms([3] * 20_000, [0] * 20_000, np.arange(20_000))
    pairs = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(pairs) < 0.03
