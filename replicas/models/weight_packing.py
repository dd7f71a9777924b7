"""Hands the weights of a model to a back end as numbers or as codes, whichever was asked for."""

from collections.abc import Callable

import torch

from replicas.config import Quantization
from replicas.kernels.fused import CodedProducts
from replicas.kernels.interface import Kernels, PackedWeight
from replicas.kernels.select import KernelsUnavailable
from replicas.quantization.weight_codes import weight_codes

# Weight [out, in] and bias [out] or None to what `Kernels.linear` takes.
PackWeight = Callable[[torch.Tensor, torch.Tensor | None], PackedWeight]


def weight_packing(kernels: Kernels, quantization: Quantization) -> PackWeight:
    """How weights are laid out; KernelsUnavailable if this back end has no products of codes."""
    if quantization == "none":
        return kernels.pack_linear
    if not isinstance(kernels, CodedProducts):
        raise KernelsUnavailable(f"kernels={kernels.name}: has no quantization={quantization}")
    coded: CodedProducts = kernels

    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        return coded.pack_codes(weight_codes(weight), bias)

    return pack
