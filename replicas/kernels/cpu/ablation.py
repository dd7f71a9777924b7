"""Parts of this back end switched off, so that a benchmark can show what each of them is worth.

What is off is computed by plain torch in its place.
"""

from collections.abc import Mapping
from typing import Any

import torch

from replicas.batch import Batch
from replicas.kernels.cpu.backend import CpuKernels
from replicas.kernels.interface import AttentionShape, Kernels, LayerCache, PackedWeight
from replicas.kernels.reference.backend import ReferenceKernels
from replicas.kernels.select import KernelsUnavailable
from replicas.quantization.weight_codes import WeightCodes

OFF_VARIABLE = "PAGODA_CPU_KERNELS_OFF"

# fused: whole layers in one call. The others only tell without it.
PARTS = ("fused", "products", "attention", "rows")
# Threads that give their cores to each other: nothing takes its place.
TRADES = "trades"


def switched_off(environ: Mapping[str, str]) -> frozenset[str]:
    """The parts that PAGODA_CPU_KERNELS_OFF names, separated by commas."""
    named = frozenset(filter(None, environ.get(OFF_VARIABLE, "").split(",")))
    known = (*PARTS, TRADES)
    unknown = sorted(named - set(known))
    if unknown:
        raise KernelsUnavailable(
            f"kernels=cpu: {OFF_VARIABLE}={','.join(unknown)}: expected {', '.join(known)}"
        )
    return named


class PartlyOff:
    """CpuKernels without some of its parts (one of PARTS each), operation by operation."""

    name = "cpu"
    deterministic = False
    device = torch.device("cpu")

    def __init__(self, own: CpuKernels, dtype: torch.dtype, off: frozenset[str]) -> None:
        plain = ReferenceKernels(dtype)

        def chosen(part: str) -> CpuKernels | ReferenceKernels:
            return plain if part in off else own

        self._products = chosen("products")
        self._attention: Kernels = chosen("attention")
        self._rows: Kernels = chosen("rows")

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        """For `linear`."""
        return self._products.pack_linear(weight, bias)

    def pack_codes(self, weight: WeightCodes, bias: torch.Tensor | None) -> PackedWeight:
        """For `linear` too."""
        return self._products.pack_codes(weight, bias)

    def linear(self, x: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        """Part products."""
        return self._products.linear(x, packed)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Part rows."""
        return self._rows.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Part rows."""
        return self._rows.add_rms_norm(x, residual, weight, eps)

    def rotate_and_store(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        plan: Any,
    ) -> torch.Tensor:
        """Part rows."""
        return self._rows.rotate_and_store(qk, v, rotary, cache, plan)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Part rows."""
        return self._rows.silu_mul(gate_up)

    def plan_attention(self, batch: Batch, shape: AttentionShape, block_size: int) -> Any:
        """Part attention."""
        return self._attention.plan_attention(batch, shape, block_size)

    def attention(
        self, q: torch.Tensor, cache: LayerCache, shape: AttentionShape, plan: Any
    ) -> torch.Tensor:
        """Part attention."""
        return self._attention.attention(q, cache, shape, plan)
