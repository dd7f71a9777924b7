"""Kernels in C++ for CPUs: compiled on the machine that runs them, for each instruction set."""

import os

import torch

from replicas.kernels.interface import Kernels


def load(dtype: torch.dtype, *, deterministic: bool) -> Kernels:
    """Kernels for weights and activations of `dtype`; KernelsUnavailable says why not."""
    # Imported here: `python -m replicas.kernels.cpu.build` must not find itself imported already.
    from replicas.kernels.cpu.choice import load_kernels

    return load_kernels(dtype, deterministic=deterministic, environ=os.environ)
