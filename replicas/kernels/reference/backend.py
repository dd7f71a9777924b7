"""The kernels' interface in plain torch on the CPU: fast, or deterministic on request."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, LayerCache
from replicas.kernels.reference import cache_access, grouped_attention
from replicas.kernels.reference.grouped_attention import GroupedPlan
from replicas.kernels.reference.linear import (
    PackedLinear,
    multiply,
    multiply_in_tiles,
    pack,
    proved_tiles,
)
from replicas.kernels.reference.scratch import Scratch
from replicas.kernels.reference.split_attention import SplitAttention, SplitPlan
from replicas.quantization.activation_codes import as_coded
from replicas.quantization.weight_codes import WeightCodes


class ReferenceKernels:
    """Plain torch. One for each engine: it keeps memory that its steps share."""

    name = "reference"
    deterministic = False
    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._scratch = Scratch()

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """Weight [out, in] in oneDNN's own layout."""
        return pack(weight, bias)

    def pack_codes(self, weight: WeightCodes, bias: torch.Tensor | None) -> PackedLinear:
        """The numbers that codes stand for, in float32: exact, and four times their memory."""
        packed = self.pack_linear(weight.numbers(), None if bias is None else bias.float())
        return replace(packed, is_coded=True)

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """x [T, in] to [T, out]."""
        if packed.is_coded:
            return self._multiply(as_coded(x), packed).to(x.dtype)
        return self._multiply(x, packed)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Norm over the last dimension, statistics in float32."""
        if weight.dim() == 1:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual), the sum in float32.

        Rounded to bfloat16 in every layer, the sum alone would account for half of the error of
        the logits.
        """
        total = residual.float() + x
        return F.rms_norm(total, weight.shape, weight.float(), eps).to(x.dtype), total

    def rotate_and_store(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        plan: GroupedPlan | SplitPlan,
    ) -> torch.Tensor:
        """Rotated q [T, H, D]; rotated k and v go to the cache."""
        cos, sin = rotary
        # Product and sum apart: fused, they would round differently in the tail of a vector.
        rotated = qk.roll(qk.shape[2] // 2, 2).mul_(sin[:, None])
        rotated += qk * cos[:, None]
        num_heads = qk.shape[1] - v.shape[1]
        cache_access.store(cache, plan.slots, rotated[:, num_heads:], v)
        return rotated[:, :num_heads].contiguous()

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] to [T, F]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def plan_attention(
        self, batch: Batch, shape: AttentionShape, block_size: int
    ) -> GroupedPlan | SplitPlan:
        """Rows in groups, with what they read and see."""
        return grouped_attention.plan(batch, shape, block_size, self._dtype)

    def attention(
        self,
        q: torch.Tensor,
        cache: LayerCache,
        shape: AttentionShape,
        plan: GroupedPlan | SplitPlan,
    ) -> torch.Tensor:
        """q [T, H, D] to [T, H * D]."""
        assert isinstance(plan, GroupedPlan), type(plan)
        return grouped_attention.attend(q, cache, shape, plan, self._scratch)

    def _multiply(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        return multiply(x, packed)


class DeterministicKernels(ReferenceKernels):
    """Plain torch in which the bits of a row depend on its own request alone.

    Products run in row tiles, attention in fixed splits; the other operations work element by
    element or row by row with exactly rounded steps (and torch.exp, which is the same for every
    length and alignment, unlike torch.sigmoid and F.silu in float32).
    """

    deterministic = True

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._proved: dict[tuple[torch.Size, torch.dtype, bool], tuple[int, ...]] = {}
        self._attentions: dict[tuple[AttentionShape, int], SplitAttention] = {}

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """Weight [out, in] in oneDNN's own layout, with the row tiles that were proved for it."""
        packed = pack(weight, bias)
        key = (weight.shape, weight.dtype, bias is not None)
        if key not in self._proved:
            self._proved[key] = proved_tiles(packed, weight.shape[1])
        return replace(packed, tiles=self._proved[key])

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] to [T, F], in float32 until the end."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        denominator = torch.exp(-gate).add_(1.0)
        return (gate / denominator).mul_(up).to(gate_up.dtype)

    def plan_attention(
        self, batch: Batch, shape: AttentionShape, block_size: int
    ) -> GroupedPlan | SplitPlan:
        """Tokens and tiles over fixed splits of their keys."""
        return self._attention(shape, block_size).plan(batch)

    def attention(
        self,
        q: torch.Tensor,
        cache: LayerCache,
        shape: AttentionShape,
        plan: GroupedPlan | SplitPlan,
    ) -> torch.Tensor:
        """q [T, H, D] to [T, H * D]."""
        assert isinstance(plan, SplitPlan), type(plan)
        attention = self._attention(shape, cache.keys.shape[1])
        return attention.attend(q, cache, plan, self._scratch)

    def _multiply(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        return multiply_in_tiles(x, packed)

    def _attention(self, shape: AttentionShape, block_size: int) -> SplitAttention:
        key = (shape, block_size)
        if key not in self._attentions:
            self._attentions[key] = SplitAttention(shape, block_size, self._dtype)
        return self._attentions[key]
