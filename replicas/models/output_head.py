"""The output head: logits of the rows that sample, exact where the choice may depend on it."""

import torch

from replicas.kernels.fused import FloatLogits
from replicas.kernels.interface import Kernels
from replicas.models.weight_packing import PackWeight

# A bfloat16 number between 16 and 32 has steps of 1/8: near-ties become ties, and the first one
# wins. Whatever lies within one step (2**-7 of the value) of the largest is computed again.
_STEP = 2.0**-7
# More candidates than this are no near-tie but a model without an opinion.
_MOST_CANDIDATES = 32


class OutputHead:
    """weight [vocab, d]; in a tied model it is the embedding itself, packed once more."""

    def __init__(self, weight: torch.Tensor, kernels: Kernels, pack: PackWeight) -> None:
        self._weight = weight
        self._kernels = kernels
        self._packed = pack(weight, None)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, d] to [S, vocab] float32; of bfloat16 products the largest are made exact."""
        kernels = self._kernels
        product = kernels.logits if isinstance(kernels, FloatLogits) else kernels.linear
        logits = product(x, self._packed)
        if logits.dtype != torch.bfloat16:
            return logits
        best = logits.amax(-1, keepdim=True)
        is_candidate = logits >= best - best.abs() * _STEP
        is_candidate &= is_candidate.sum(-1, keepdim=True) <= _MOST_CANDIDATES
        rows, tokens = is_candidate.nonzero(as_tuple=True)
        logits = logits.float()
        # Summed in float64, so that no order of addition can show in the float32 result.
        products = self._weight.index_select(0, tokens).double() * x.index_select(0, rows).double()
        logits[rows, tokens] = products.sum(-1).float()
        return logits
