"""Activations become codes in groups of 32, so that a large one spoils few others."""

import torch

from replicas.quantization.activation_codes import GROUP, as_coded


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_numbers_come_back_within_half_a_step_of_their_group() -> None:
    x = noise(20, 3 * GROUP)
    largest = x.unflatten(1, (3, GROUP)).abs().amax(-1, keepdim=True)
    error = (as_coded(x) - x).unflatten(1, (3, GROUP)).abs()
    assert (error <= 0.5001 * largest / 127).all()


def test_a_large_number_spoils_its_own_group_only() -> None:
    x = noise(1, 3 * GROUP)
    before = as_coded(x)
    x[0, GROUP + 5] = 1e4
    after = as_coded(x)
    assert torch.equal(after[:, :GROUP], before[:, :GROUP])
    assert torch.equal(after[:, 2 * GROUP :], before[:, 2 * GROUP :])
    assert not after[0, GROUP : GROUP + 5].any()


def test_the_last_group_may_be_shorter() -> None:
    x = noise(5, GROUP + 7)
    coded = as_coded(x)
    assert coded.shape == x.shape
    assert torch.equal(coded[:, GROUP:], as_coded(x[:, GROUP:]))


def test_what_is_not_finite_stays_so() -> None:
    x = noise(3, GROUP)
    x[0, 3], x[1, 5] = float("nan"), float("inf")
    is_finite = as_coded(x).isfinite().all(-1)
    assert is_finite.tolist() == [False, False, True]


def test_zeros_stay_zeros() -> None:
    assert not as_coded(torch.zeros(2, GROUP)).any()
