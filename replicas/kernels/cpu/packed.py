"""What the C++ side is handed: packed weights, and a batch's own arrays as tensors."""

from dataclasses import dataclass

import torch

from replicas.batch import Batch
from replicas.kernels.interface import LayerCache

# Outputs of one panel of a packed weight (kPanel of the C++ side).
PANEL = 32


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """panels [ceil(out / 32) * words * 32] int32 of a weight [out, in]; bias [out] or empty.

    A word holds two inputs in bfloat16, one in float32, and four as codes. scales: [out] float32 of
    a weight of codes, otherwise empty.
    """

    panels: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor
    out_features: int
    in_features: int

    @property
    def is_coded(self) -> bool:
        """Whether its numbers are codes."""
        return len(self.scales) > 0

    def parts(self) -> list[torch.Tensor]:
        """As packed_of on the C++ side reads them; an empty tensor stands for none."""
        return [self.panels, self.scales, self.bias]


def cache_parts(cache: LayerCache) -> list[torch.Tensor]:
    """Keys and values, and the scales of both where they are codes."""
    parts = [cache.keys, cache.values]
    if cache.key_scales is not None and cache.value_scales is not None:
        parts += [cache.key_scales, cache.value_scales]
    return parts


def row_tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query_start, context_lens and block_tables of a batch, without copying."""
    return (
        torch.from_numpy(batch.query_start),
        torch.from_numpy(batch.context_lens),
        torch.from_numpy(batch.block_tables).contiguous(),
    )
