"""What a back end must be able to compute; the decoder is written against this and nothing else.

Shapes: T tokens of a step, R rows (requests), H query heads, G key-value heads, D head size.
Packed weights are opaque: a back end lays them out once, as it likes.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from replicas.batch import Batch

PackedWeight = Any


@dataclass(slots=True)
class LayerCache:
    """K and V of one layer: two tensors [num_blocks, block_size, G, D].

    key_scales, value_scales: [num_blocks, block_size, G] float32 where keys and values are codes
    of int8 or float8_e4m3fn: a number is its code times the scale of its token and head. None in a
    cache that is not quantised.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one attention layer; scale multiplies q·k; window 0 means full attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0


class Kernels(Protocol):
    """One back end. Every method returns new tensors unless it says that it writes in place."""

    @property
    def name(self) -> str:
        """As EngineConfig.kernels names it."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether a row's bits depend on that row alone."""
        ...

    @property
    def device(self) -> torch.device:
        """Where weights, cache and activations lie."""
        ...

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        """Lay out weight [out, in] and bias [out] for `linear`; the originals may be dropped."""
        ...

    def linear(self, x: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        """x [T, in] to [T, out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm over the last dimension (RMSNorm).

        weight: [d] for x [T, d], or [N, D] for x [T, N, D], where every head has its own row.
        """
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual) in the type of x, x + residual in the type that suits a sum)."""
        ...

    def rotate_and_store(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        plan: Any,
    ) -> torch.Tensor:
        """Rotated q [T, H, D]; rotated k and v [T, G, D] are written to the cache in place.

        qk: [T, H + G, D], the queries and then the keys, so that one call rotates both.
        rotary: cos and sin [T, D] of this step's positions, sin with its first half negated
        (replicas.models.rotary). plan: from `plan_attention`.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] to [T, F]: silu of the first half times the second."""
        ...

    def plan_attention(self, batch: Batch, shape: AttentionShape, block_size: int) -> Any:
        """Whatever of a batch is the same for every layer with this shape; made once a step.

        Holds for the layers of one step only, one layer after another.
        """
        ...

    def attention(
        self, q: torch.Tensor, cache: LayerCache, shape: AttentionShape, plan: Any
    ) -> torch.Tensor:
        """q [T, H, D] over each row's own block table, causal, to [T, H * D]."""
        ...
