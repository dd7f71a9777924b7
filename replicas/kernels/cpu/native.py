"""The compiled library as Python sees it: loaded once, and which instruction set it shall use."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from replicas.kernels.cpu.build import kernel_cache_dir, library
from replicas.kernels.select import KernelsUnavailable

log = logging.getLogger(__name__)

ISA_VARIABLE = "PAGODA_CPU_ISA"


def load_native(environ: Mapping[str, str]) -> Any:
    """torch.ops.pagoda_cpu, compiled first if need be; KernelsUnavailable says why not."""
    path = library(kernel_cache_dir(environ), environ)
    return _loaded(path)


def _loaded(path: Path) -> Any:
    # torch refuses a second library of the same names, and returns at once for the same path.
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        raise KernelsUnavailable(f"kernels=cpu: {path} cannot be loaded: {error}") from error
    return torch.ops.pagoda_cpu


def instruction_sets(native: Any) -> dict[str, int]:
    """Name to number of those that this processor has, best first."""
    return dict(native.instruction_sets())


def choose_instruction_set(native: Any, asked: str) -> int:
    """The number of the one asked for, or of the best; KernelsUnavailable if it is not here."""
    present = instruction_sets(native)
    name = asked or next(iter(present))
    if name not in present:
        raise KernelsUnavailable(
            f"kernels=cpu: {ISA_VARIABLE}={asked}: this processor has {', '.join(present)}"
        )
    log.info("cpu kernels instruction_set=%s", name)
    return present[name]
