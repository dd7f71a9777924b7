"""Every back end that this machine can run, for tests that hold for all of them."""

import os
from collections.abc import Callable
from functools import cache

import torch

from replicas.kernels.cpu.backend import CpuKernels
from replicas.kernels.cpu.native import instruction_sets, load_native
from replicas.kernels.interface import Kernels
from replicas.kernels.reference.backend import DeterministicKernels, ReferenceKernels

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INSTRUCTION_SETS = ("avx512_bf16", "avx512_vnni", "avx512", "avx2", "portable")
MakeKernels = Callable[[torch.dtype], Kernels]

BACK_ENDS = (
    "reference",
    "reference deterministic",
    *(f"cpu {name}" for name in INSTRUCTION_SETS),
)


class NotHere(Exception):
    """This processor lacks the instruction set."""


@cache
def make(name: str, dtype: torch.dtype) -> Kernels:
    """Kernels of this name; NotHere if the processor lacks what they need."""
    if name == "reference":
        return ReferenceKernels(dtype)
    if name == "reference deterministic":
        return DeterministicKernels(dtype)
    native = load_native(os.environ)
    present = instruction_sets(native)
    asked = name.removeprefix("cpu ")
    if asked not in present:
        raise NotHere(f"no {asked} here")
    return CpuKernels(native, present[asked], dtype)
