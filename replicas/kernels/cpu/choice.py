"""Chooses what this back end computes with: an instruction set, and all of its parts or some."""

from collections.abc import Mapping

import torch

from replicas.kernels.cpu.ablation import TRADES, PartlyOff, switched_off
from replicas.kernels.cpu.backend import CpuKernels
from replicas.kernels.cpu.native import ISA_VARIABLE, choose_instruction_set, load_native
from replicas.kernels.interface import Kernels
from replicas.kernels.select import KernelsUnavailable
from replicas.team_cores import named_cores


def load_kernels(dtype: torch.dtype, *, deterministic: bool, environ: Mapping[str, str]) -> Kernels:
    """Kernels for weights and activations of `dtype`; KernelsUnavailable says why not."""
    if dtype not in (torch.bfloat16, torch.float32):
        raise KernelsUnavailable(f"kernels=cpu: {dtype}: expected bfloat16 or float32")
    named = switched_off(environ)
    off = named - {TRADES}
    if off and deterministic:
        raise KernelsUnavailable("kernels=cpu: parts cannot be off in deterministic mode")
    native = load_native(environ)
    isa = choose_instruction_set(native, environ.get(ISA_VARIABLE, ""))
    native.set_core_trading(isa, TRADES not in named)
    native.assign_cores(isa, _cores(environ))
    own = CpuKernels(native, isa, dtype)
    return PartlyOff(own, dtype, off) if off else own


def _cores(environ: Mapping[str, str]) -> list[int]:
    try:
        return named_cores(environ)
    except ValueError as error:
        raise KernelsUnavailable(f"kernels=cpu: {error}") from error
