"""Which cores the threads of an engine are bound to, one each, on the CPU.

A process that has a core for each of its engine's threads binds them: the system's scheduler would
put two of them on one core now and then, and the others wait for both. Where threads are fewer than
cores they run where the system puts them.
"""

import os
from collections.abc import Mapping

# The cores by their numbers, separated by commas; empty: no thread is bound.
CORES_VARIABLE = "PAGODA_CPU_CORES"
# Whoever sets one of these has the threads bound by OpenMP itself.
_OPENMP_BINDS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def num_allowed_cores() -> int:
    """How many cores this process may use.

    Not once torch is loaded where OpenMP binds threads: it binds the thread that loads it too.
    """
    return len(os.sched_getaffinity(0))


def cores_to_bind(num_threads: int, environ: Mapping[str, str]) -> str:
    """What CORES_VARIABLE should say in the process of an engine with `num_threads` threads."""
    if CORES_VARIABLE in environ:
        return environ[CORES_VARIABLE]
    cores = sorted(os.sched_getaffinity(0))
    if num_threads != len(cores) or any(name in environ for name in _OPENMP_BINDS):
        return ""
    return ",".join(map(str, cores))


def named_cores(environ: Mapping[str, str]) -> list[int]:
    """The cores that CORES_VARIABLE names; a ValueError says what is wrong with it."""
    named = environ.get(CORES_VARIABLE, "")
    try:
        cores = [int(core) for core in named.split(",")] if named else []
    except ValueError:
        cores = [-1]
    if len(set(cores)) < len(cores) or any(core < 0 for core in cores):
        raise ValueError(
            f"{CORES_VARIABLE}={named}: expected different numbers separated by commas"
        )
    return cores


def bind_own_process(num_threads: int) -> None:
    """For a program whose own process has the engine; before it is built."""
    os.environ[CORES_VARIABLE] = cores_to_bind(num_threads, os.environ)
