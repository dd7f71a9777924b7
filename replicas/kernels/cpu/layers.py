"""Whole layers in one call: weights handed over once, a step's arrays once, then layer by layer.

A step enters Python three times instead of three hundred.
"""

from collections.abc import Sequence
from typing import Any

import torch

from replicas.kernels.cpu.packed import PackedLinear, cache_parts, row_tensors
from replicas.kernels.fused import DecoderParts, DecoderStep, FusedSeconds, LayerParts
from replicas.kernels.interface import LayerCache


class CpuLayers:
    """The layers of one decoder (implements replicas.kernels.fused.FusedLayers)."""

    def __init__(self, isa: int, parts: DecoderParts) -> None:
        shape = parts.shapes[0]
        sizes = [isa, parts.embedding.shape[1], parts.inner_size]
        sizes += [shape.num_heads, shape.num_kv_heads, shape.head_dim]
        self._native: Any = torch.classes.pagoda_cpu.DecoderLayers(
            [*sizes, *(shape.window for shape in parts.shapes)],
            [parts.eps, shape.scale],
            [parts.embedding.contiguous(), parts.final_norm.float()],
            [tensor for layer in parts.layers for tensor in _tensors(layer)],
        )
        self._caches: Sequence[LayerCache] = ()

    def start(self, step: DecoderStep) -> None:
        """Take a step in."""
        if step.caches is not self._caches:
            self._native.use_caches([part for cache in step.caches for part in cache_parts(cache)])
            self._caches = step.caches
        slots = torch.from_numpy(step.batch.slot_mapping)
        self._native.start(
            [step.token_ids, *step.rotary, *row_tensors(step.batch), slots, step.last_tokens]
        )

    def run(self, first: int, last: int) -> torch.Tensor:
        """Layers first to last; after the last one of all, [S, d], normed."""
        normed: torch.Tensor = self._native.run(first, last)
        return normed

    def run_until(self, first: int, last: int, wanted: torch.Tensor) -> int:
        """As `run`, before the last layer of all; returns where to go on."""
        reached: int = self._native.run_until(first, last, wanted)
        return reached

    def take_seconds(self) -> FusedSeconds:
        """What was spent inside since the last call; SwiGLU is part of a product here."""
        qkv, rotate, attention, output, norm, gate_up, down = self._native.take_seconds()
        return FusedSeconds(
            linear_s=qkv + output + gate_up + down,
            attention_s=attention,
            store_s=rotate,
            other_s=norm,
        )


def _tensors(layer: LayerParts) -> list[torch.Tensor]:
    """As layer_of on the C++ side reads them; an empty tensor stands for none."""
    packed: list[PackedLinear] = [layer.qkv, layer.output, layer.gate_up, layer.down]
    qk_norm = torch.empty(0) if layer.qk_norm is None else layer.qk_norm.float().contiguous()
    norms = [layer.input_norm.float(), layer.post_norm.float(), qk_norm]
    return [*norms, *(part for each in packed for part in each.parts())]
