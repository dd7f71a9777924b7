"""Loads the plain torch back end; it runs everywhere."""

import torch

from replicas.kernels.interface import Kernels
from replicas.kernels.reference.backend import DeterministicKernels, ReferenceKernels


def load(dtype: torch.dtype, *, deterministic: bool) -> Kernels:
    """Plain torch kernels for weights and activations of `dtype`."""
    return DeterministicKernels(dtype) if deterministic else ReferenceKernels(dtype)
