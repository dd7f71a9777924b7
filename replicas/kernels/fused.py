"""What a back end may offer beyond single operations: whole layers, logits in float32, codes.

Whoever wants one of these asks for it by protocol, and does without where it is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, LayerCache, PackedWeight
from replicas.quantization.weight_codes import WeightCodes


class LayerParts(Protocol):
    """The weights of one layer, as replicas.models.weights.LayerWeights has them."""

    @property
    def input_norm(self) -> torch.Tensor: ...
    @property
    def qkv(self) -> PackedWeight: ...
    @property
    def qk_norm(self) -> torch.Tensor | None: ...
    @property
    def output(self) -> PackedWeight: ...
    @property
    def post_norm(self) -> torch.Tensor: ...
    @property
    def gate_up(self) -> PackedWeight: ...
    @property
    def down(self) -> PackedWeight: ...


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """A decoder of the Llama family: embedding [vocab, d], one shape and one window per layer."""

    embedding: torch.Tensor
    layers: Sequence[LayerParts]
    final_norm: torch.Tensor
    eps: float
    inner_size: int
    shapes: Sequence[AttentionShape]


@dataclass(frozen=True, slots=True)
class DecoderStep:
    """One step: token_ids [T] int64, rotary cos and sin [T, D], last_tokens [S] int64.

    last_tokens: where in the flat batch the token before each sampled one lies, ascending.
    """

    batch: Batch
    token_ids: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]
    last_tokens: torch.Tensor
    caches: Sequence[LayerCache]


@dataclass(frozen=True, slots=True)
class FusedSeconds:
    """Seconds of the parts of layers, as replicas.kernels.timed names them."""

    linear_s: float
    attention_s: float
    store_s: float
    other_s: float


class FusedLayers(Protocol):
    """The layers of one decoder, run several at a time."""

    def start(self, step: DecoderStep) -> None:
        """Take a step in; its tensors must stay as they are until its last layer has run."""
        ...

    def run(self, first: int, last: int) -> torch.Tensor:
        """Layers first to last in order; after the last one of all, [S, d], normed."""
        ...

    def run_until(self, first: int, last: int, wanted: torch.Tensor) -> int:
        """As `run`, before the last layer of all, but stops between two layers when it is asked to.

        wanted: [1] int32; once it is not 0, at most one more layer is computed. Returns the layer
        to go on with: `last` if it was not stopped.
        """
        ...

    def take_seconds(self) -> FusedSeconds:
        """What was spent inside since the last call."""
        ...


@runtime_checkable
class CanFuse(Protocol):
    """A back end that runs whole layers."""

    def fuse(self, parts: DecoderParts) -> FusedLayers | None:
        """The layers of this decoder, or None if this one must go operation by operation."""
        ...


@runtime_checkable
class FloatLogits(Protocol):
    """A back end whose products can come out as they were added up."""

    def logits(self, x: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        """x [T, in] to [T, out] float32."""
        ...


@runtime_checkable
class CodedProducts(Protocol):
    """A back end whose products take weights, and then activations, as codes of int8."""

    def pack_codes(self, weight: WeightCodes, bias: torch.Tensor | None) -> PackedWeight:
        """Lay out a weight and bias [out] for `linear`; the originals may be dropped.

        `linear` then computes with activations as replicas.quantization.activation_codes has them.
        """
        ...
