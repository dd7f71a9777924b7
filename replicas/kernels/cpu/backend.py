"""The kernels' interface on top of the compiled library.

Every result has bits that depend on its own row alone: products add up in the order of the inputs,
attention merges fixed splits. So the deterministic mode is not a mode here, and costs nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch

from replicas.batch import Batch
from replicas.kernels.cpu.huge_memory import HugeMemory
from replicas.kernels.cpu.layers import CpuLayers
from replicas.kernels.cpu.packed import PANEL, PackedLinear, cache_parts, row_tensors
from replicas.kernels.fused import DecoderParts
from replicas.kernels.interface import AttentionShape, LayerCache
from replicas.quantization.weight_codes import WeightCodes

_CODES_PER_WORD = 4


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """slots: [T] where each token's K and V go. rows: query_start, context_lens, block_tables."""

    slots: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class CpuKernels:
    """C++ on the CPU. One for each engine: it keeps memory that its steps share."""

    name = "cpu"
    deterministic = True
    device = torch.device("cpu")

    def __init__(self, native: Any, isa: int, dtype: torch.dtype) -> None:
        self.native = native
        self.isa = isa
        self._dtype = dtype
        self._memory = HugeMemory()
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._empty = torch.empty(0)

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """Weight [out, in] in panels of 32 outputs."""
        out, width = weight.shape
        words = -(-width // self._per_word)
        panels = self._memory.words(-(-out // PANEL) * words * PANEL)
        self.native.pack(self.isa, weight.contiguous(), panels)
        return PackedLinear(panels, self._empty, self._bias(bias), out, width)

    def pack_codes(self, weight: WeightCodes, bias: torch.Tensor | None) -> PackedLinear:
        """Codes [out, in] in panels of 32 outputs, by four inputs."""
        out, width = weight.codes.shape
        panels = self._memory.words(-(-out // PANEL) * -(-width // _CODES_PER_WORD) * PANEL)
        self.native.pack_codes(self.isa, weight.codes.contiguous(), panels)
        return PackedLinear(panels, weight.scales.contiguous(), self._bias(bias), out, width)

    def linear(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """x [T, in] to [T, out]."""
        return self._product(x, packed, to_float=False)

    def logits(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """x [T, in] to [T, out] float32, as it was added up."""
        return self._product(x, packed, to_float=True)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Norm over the last dimension, in float32 inside."""
        if weight.dim() == 1:
            return self._norm(x, self._empty, weight, eps)
        own = torch.ones(weight.shape[-1])
        return self._norm(x, self._empty, own, eps).mul_(weight)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual), the sum in float32."""
        total = residual.to(torch.float32, copy=True)
        return self._norm(x, total, weight, eps), total

    def rotate_and_store(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        plan: CpuPlan,
    ) -> torch.Tensor:
        """Rotated q [T, H, D], in the memory of qk; rotated k and v go to the cache."""
        cos, sin = rotary
        self.native.rotate_and_store(self.isa, qk, v, cos, sin, cache_parts(cache), plan.slots)
        return qk[:, : qk.shape[1] - v.shape[1]]

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] to [T, F], in float32 until the end."""
        activated: torch.Tensor = self.native.silu_mul(self.isa, gate_up)
        return activated

    def plan_attention(self, batch: Batch, shape: AttentionShape, block_size: int) -> CpuPlan:
        """The batch's own arrays: work is cut up on the other side."""
        return CpuPlan(torch.from_numpy(batch.slot_mapping), row_tensors(batch))

    def attention(
        self, q: torch.Tensor, cache: LayerCache, shape: AttentionShape, plan: CpuPlan
    ) -> torch.Tensor:
        """q [T, H, D] to [T, H * D]."""
        attended: torch.Tensor = self.native.attention(
            self.isa,
            q,
            cache_parts(cache),
            [*plan.rows, plan.slots],
            shape.scale,
            shape.window,
            self._scratch,
        )
        return attended

    def fuse(self, parts: DecoderParts) -> CpuLayers | None:
        """The layers of a decoder; None where a row of theirs is no whole number of words."""
        widths = (parts.embedding.shape[1], parts.inner_size, parts.shapes[0].head_dim)
        if any(width % self._per_word for width in widths):
            return None
        return CpuLayers(self.isa, parts)

    @property
    def _per_word(self) -> int:
        return 2 if self._dtype is torch.bfloat16 else 1

    def _bias(self, bias: torch.Tensor | None) -> torch.Tensor:
        return self._empty if bias is None else bias.float().contiguous()

    def _product(self, x: torch.Tensor, packed: PackedLinear, *, to_float: bool) -> torch.Tensor:
        if packed.in_features % self._per_word and not packed.is_coded:
            x = torch.nn.functional.pad(x, (0, 1))
        product: torch.Tensor = self.native.linear(
            self.isa, x.contiguous(), packed.parts(), packed.out_features, to_float
        )
        return product

    def _norm(
        self, x: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        normed: torch.Tensor = self.native.rms_norm(
            self.isa, x.contiguous(), total, weight.float(), eps
        )
        return normed
