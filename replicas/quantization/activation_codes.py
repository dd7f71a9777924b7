"""What an activation is worth once it has become a code of int8, as every back end has it.

Scales are dynamic, one for each 32 numbers of a row: a decoder's few large activations (LLM.int8,
Dettmers et al. 2022) would spoil a whole row of codes, but so they spoil their own group only.
"""

import torch
import torch.nn.functional as F

from replicas.quantization.weight_codes import LARGEST_CODE

# Neighbouring numbers of a row that share a scale (kGroup of the C++ side).
GROUP = 32
_LEAST = 1e-30


def as_coded(x: torch.Tensor) -> torch.Tensor:
    """x [T, in] to [T, in] float32: each number as its code times the scale of its group.

    A group with a number that is not finite is not finite as a whole.
    """
    num_rows, width = x.shape
    groups = F.pad(x.float(), (0, -width % GROUP)).view(num_rows, -(-width // GROUP), GROUP)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(_LEAST)
    # A number divided by a tensor would be rounded twice: torch multiplies by the reciprocal.
    codes = (groups * (torch.full_like(largest, LARGEST_CODE) / largest)).round_()
    return codes.mul_(largest * (1 / LARGEST_CODE)).flatten(1)[:, :width]
