"""Which cores an engine's process is told to bind its threads to."""

import os

import pytest
import torch

from replicas.kernels.cpu.choice import load_kernels
from replicas.kernels.select import KernelsUnavailable
from replicas.team_cores import CORES_VARIABLE, cores_to_bind, named_cores

ALLOWED = sorted(os.sched_getaffinity(0))
ALL = ",".join(map(str, ALLOWED))


def test_a_thread_for_every_core_is_bound() -> None:
    assert cores_to_bind(len(ALLOWED), {}) == ALL
    assert named_cores({CORES_VARIABLE: ALL}) == ALLOWED


@pytest.mark.parametrize("num_threads", [len(ALLOWED) - 1, len(ALLOWED) + 1])
def test_other_numbers_of_threads_are_not(num_threads: int) -> None:
    assert cores_to_bind(num_threads, {}) == ""


@pytest.mark.parametrize("variable", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_openmp_binds_where_it_is_told_to(variable: str) -> None:
    assert cores_to_bind(len(ALLOWED), {variable: "1"}) == ""


@pytest.mark.parametrize("wish", ["", "7", "3,1"])
def test_a_wish_goes_before_everything_else(wish: str) -> None:
    assert cores_to_bind(len(ALLOWED), {CORES_VARIABLE: wish, "OMP_PROC_BIND": "1"}) == wish


@pytest.mark.parametrize("wish", ["0,x", "0,,1", "1,1", "-1", "0-3"])
def test_a_wish_that_makes_no_sense_is_refused(wish: str) -> None:
    environ = {**os.environ, CORES_VARIABLE: wish}
    with pytest.raises(KernelsUnavailable, match=f"{CORES_VARIABLE}={wish}: expected different"):
        load_kernels(torch.bfloat16, deterministic=True, environ=environ)


def test_none_are_named_by_default() -> None:
    assert named_cores({}) == []
