"""Chooses the back end that an engine computes with, and says why another one is not used."""

import importlib
import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from replicas.config import Quantization
from replicas.kernels.interface import Kernels

log = logging.getLogger(__name__)


class KernelsUnavailable(RuntimeError):
    """A back end cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a back end is found. module: has `load(dtype, deterministic=...) -> Kernels`, which
    raises KernelsUnavailable where it cannot run. needs_cuda: only tried where there is a GPU.
    converts_cache: its KV cache may be of another type than the activations, quantised ones too.
    has_codes: its products take weights as codes of int8 (replicas.kernels.fused.CodedProducts).
    """

    module: str
    needs_cuda: bool = False
    converts_cache: bool = False
    has_codes: bool = False


# In the order in which `auto` tries them.
SEATS: Mapping[str, Seat] = {
    "triton": Seat("replicas.kernels.triton", needs_cuda=True),
    "cpu": Seat("replicas.kernels.cpu", converts_cache=True, has_codes=True),
    "reference": Seat("replicas.kernels.reference.load", converts_cache=True, has_codes=True),
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    dtype: torch.dtype
    cache_dtype: torch.dtype
    quantization: Quantization
    deterministic: bool


def select_kernels(
    asked: str,
    dtype: torch.dtype,
    *,
    deterministic: bool,
    cache_dtype: torch.dtype | None = None,
    quantization: Quantization = "none",
    seats: Mapping[str, Seat] = SEATS,
) -> Kernels:
    """The back end `asked` for ("auto" takes the first that loads).

    dtype: of weights and activations. cache_dtype: of K and V; None means the same. quantization:
    of the weights.
    KernelsUnavailable if the one asked for by name cannot run here, or none can.
    """
    wanted = _Wanted(dtype, cache_dtype or dtype, quantization, deterministic)
    if asked != "auto":
        if asked not in seats:
            raise KernelsUnavailable(f"kernels={asked}: expected auto or one of {', '.join(seats)}")
        return _load(asked, seats[asked], wanted)
    for name, seat in seats.items():
        if seat.needs_cuda and not torch.cuda.is_available():
            continue
        try:
            kernels = _load(name, seat, wanted)
        except KernelsUnavailable as error:
            log.info("kernels not used name=%s reason=%s", name, error)
            continue
        log.info("kernels chosen name=%s deterministic=%s", name, deterministic)
        return kernels
    raise KernelsUnavailable(f"none of the back ends {', '.join(seats)} can run here")


def _load(name: str, seat: Seat, wanted: _Wanted) -> Kernels:
    if importlib.util.find_spec(seat.module) is None:
        raise KernelsUnavailable(f"kernels={name}: this version has no such back end")
    if wanted.cache_dtype is not wanted.dtype and not seat.converts_cache:
        raise KernelsUnavailable(
            f"kernels={name}: has no KV cache of {wanted.cache_dtype} beside {wanted.dtype}"
        )
    if wanted.quantization != "none" and not seat.has_codes:
        raise KernelsUnavailable(f"kernels={name}: has no quantization={wanted.quantization}")
    try:
        module = importlib.import_module(seat.module)
    except ImportError as error:
        raise KernelsUnavailable(f"kernels={name}: {error}") from error
    kernels: Kernels = module.load(wanted.dtype, deterministic=wanted.deterministic)
    return kernels
