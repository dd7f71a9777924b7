"""Chooses the back end that an engine computes with, and says why another one is not used."""

import importlib
import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from replicas.kernels.interface import Kernels

log = logging.getLogger(__name__)


class KernelsUnavailable(RuntimeError):
    """A back end cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a back end is found. module: has `load(dtype, deterministic=...) -> Kernels`, which
    raises KernelsUnavailable where it cannot run. needs_cuda: only tried where there is a GPU.
    """

    module: str
    needs_cuda: bool = False


# In the order in which `auto` tries them.
SEATS: Mapping[str, Seat] = {
    "triton": Seat("replicas.kernels.triton", needs_cuda=True),
    "cpu": Seat("replicas.kernels.cpu"),
    "reference": Seat("replicas.kernels.reference.load"),
}


def select_kernels(
    asked: str,
    dtype: torch.dtype,
    *,
    deterministic: bool,
    seats: Mapping[str, Seat] = SEATS,
) -> Kernels:
    """The back end `asked` for ("auto" takes the first that loads).

    KernelsUnavailable if the one asked for by name cannot run here, or none can.
    """
    if asked != "auto":
        if asked not in seats:
            raise KernelsUnavailable(f"kernels={asked}: expected auto or one of {', '.join(seats)}")
        return _load(asked, seats[asked], dtype, deterministic=deterministic)
    for name, seat in seats.items():
        if seat.needs_cuda and not torch.cuda.is_available():
            continue
        try:
            kernels = _load(name, seat, dtype, deterministic=deterministic)
        except KernelsUnavailable as error:
            log.info("kernels not used name=%s reason=%s", name, error)
            continue
        log.info("kernels chosen name=%s deterministic=%s", name, deterministic)
        return kernels
    raise KernelsUnavailable(f"none of the back ends {', '.join(seats)} can run here")


def _load(name: str, seat: Seat, dtype: torch.dtype, *, deterministic: bool) -> Kernels:
    if importlib.util.find_spec(seat.module) is None:
        raise KernelsUnavailable(f"kernels={name}: this version has no such back end")
    try:
        module = importlib.import_module(seat.module)
    except ImportError as error:
        raise KernelsUnavailable(f"kernels={name}: {error}") from error
    kernels: Kernels = module.load(dtype, deterministic=deterministic)
    return kernels
