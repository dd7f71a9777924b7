"""A weight's codes stand for its numbers within half a step of each output's own scale."""

import torch

from replicas.quantization.weight_codes import weight_codes


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_numbers_come_back_within_half_a_step() -> None:
    # Outputs of very different sizes, so that one scale for all would not do.
    weight = noise(40, 96) * torch.logspace(-4, 3, 40)[:, None]
    made = weight_codes(weight)
    steps = weight.abs().amax(-1) / 127
    assert ((made.numbers() - weight).abs() <= 0.5001 * steps[:, None]).all()


def test_codes_are_as_large_below_zero_as_above() -> None:
    codes = weight_codes(torch.tensor([[-3.0, 3.0, 1.0], [-1.0, 0.0, 0.5]])).codes
    assert codes.tolist() == [[-127, 127, 42], [-127, 0, 64]]


def test_an_output_of_zeros_stays_zero() -> None:
    assert not weight_codes(torch.zeros(3, 8)).numbers().any()


def test_bfloat16_weights_are_taken_as_they_are() -> None:
    weight = noise(8, 32).bfloat16()
    assert torch.equal(weight_codes(weight).codes, weight_codes(weight.float()).codes)
