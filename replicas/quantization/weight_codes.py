"""Turns a weight into codes of int8 with a scale for each output, once, while a model loads."""

from dataclasses import dataclass

import torch

LARGEST_CODE = 127.0
# A row of zeros has a scale too.
_LEAST = 1e-30


@dataclass(frozen=True, slots=True)
class WeightCodes:
    """A weight [out, in]: codes [out, in] int8 from -127 to 127 times scales [out] float32.

    The numbers of an output lie on both sides of zero and in one range, so that neither an offset
    nor finer scales pay (docs/performance.md).
    """

    codes: torch.Tensor
    scales: torch.Tensor

    def numbers(self) -> torch.Tensor:
        """What the codes stand for: [out, in] float32."""
        return self.codes.float() * self.scales[:, None]


def weight_codes(weight: torch.Tensor) -> WeightCodes:
    """The nearest codes; the largest number of every output is exact up to rounding."""
    numbers = weight.float()
    largest = numbers.abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    codes = (numbers * (LARGEST_CODE / largest)).round_().to(torch.int8)
    return WeightCodes(codes, largest[:, 0] / LARGEST_CODE)
