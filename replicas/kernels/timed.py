"""Splits a step's time into linear layers, attention and the rest, by wrapping another back end.

Nothing is measured unless the wrapper is put in, so it costs nothing when it is not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from replicas.batch import Batch
from replicas.kernels.fused import (
    CanFuse,
    CodedProducts,
    DecoderParts,
    FloatLogits,
    FusedLayers,
)
from replicas.kernels.interface import AttentionShape, Kernels, LayerCache, PackedWeight
from replicas.quantization.weight_codes import WeightCodes


@dataclass(slots=True)
class StepBreakdown:
    """Seconds since the last `take`. plan_s: planning attention; other_s: norms and activations."""

    linear_s: float = 0.0
    attention_s: float = 0.0
    store_s: float = 0.0
    plan_s: float = 0.0
    other_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All that was measured; what a step takes beyond it lies outside the kernels."""
        return self.linear_s + self.attention_s + self.store_s + self.plan_s + self.other_s


@dataclass(slots=True)
class TimedKernels:
    """Another back end with a stopwatch around every call (on a GPU, waiting for its end)."""

    inner: Kernels
    clock: Callable[[], float] = time.perf_counter
    _times: StepBreakdown = field(default_factory=StepBreakdown)
    _fused: list[FusedLayers] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the back end inside."""
        return self.inner.name

    @property
    def deterministic(self) -> bool:
        """Of the back end inside."""
        return self.inner.deterministic

    @property
    def device(self) -> torch.device:
        """Of the back end inside."""
        return self.inner.device

    def take(self) -> StepBreakdown:
        """What was measured since the last call."""
        taken, self._times = self._times, StepBreakdown()
        for fused in self._fused:
            inside = fused.take_seconds()
            taken.linear_s += inside.linear_s
            taken.attention_s += inside.attention_s
            taken.store_s += inside.store_s
            taken.other_s += inside.other_s
        return taken

    def fuse(self, parts: DecoderParts) -> FusedLayers | None:
        """The layers of the back end inside, which keep time themselves."""
        fused = self.inner.fuse(parts) if isinstance(self.inner, CanFuse) else None
        if fused is not None:
            self._fused.append(fused)
        return fused

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        """Not measured: it is part of loading."""
        return self.inner.pack_linear(weight, bias)

    def pack_codes(self, weight: WeightCodes, bias: torch.Tensor | None) -> PackedWeight:
        """Not measured either; the back end inside must have products of codes."""
        assert isinstance(self.inner, CodedProducts), self.inner.name
        return self.inner.pack_codes(weight, bias)

    def linear(self, x: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        """Counts as linear_s."""
        with self._measured("linear_s"):
            return self.inner.linear(x, packed)

    def logits(self, x: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        """Counts as linear_s; float32 if the back end inside gives that."""
        with self._measured("linear_s"):
            if isinstance(self.inner, FloatLogits):
                return self.inner.logits(x, packed)
            return self.inner.linear(x, packed)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Counts as other_s."""
        with self._measured("other_s"):
            return self.inner.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Counts as other_s."""
        with self._measured("other_s"):
            return self.inner.add_rms_norm(x, residual, weight, eps)

    def rotate_and_store(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        plan: Any,
    ) -> torch.Tensor:
        """Counts as store_s."""
        with self._measured("store_s"):
            return self.inner.rotate_and_store(qk, v, rotary, cache, plan)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Counts as other_s."""
        with self._measured("other_s"):
            return self.inner.silu_mul(gate_up)

    def plan_attention(self, batch: Batch, shape: AttentionShape, block_size: int) -> Any:
        """Counts as plan_s."""
        with self._measured("plan_s"):
            return self.inner.plan_attention(batch, shape, block_size)

    def attention(
        self, q: torch.Tensor, cache: LayerCache, shape: AttentionShape, plan: Any
    ) -> torch.Tensor:
        """Counts as attention_s."""
        with self._measured("attention_s"):
            return self.inner.attention(q, cache, shape, plan)

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        started = self.clock()
        yield
        if self.inner.device.type == "cuda":
            torch.cuda.synchronize(self.inner.device)
        setattr(self._times, name, getattr(self._times, name) + self.clock() - started)
