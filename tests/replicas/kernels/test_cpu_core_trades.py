"""Threads that lose their cores to other processes get those of the threads that wait for them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from replicas.kernels.cpu.ablation import OFF_VARIABLE, TRADES
from replicas.kernels.cpu.backend import CpuKernels
from replicas.kernels.cpu.choice import load_kernels
from tests.replicas.kernels.test_contract import noise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="threads are moved on Linux alone"),
]

ALLOWED = os.sched_getaffinity(0) if sys.platform == "linux" else set()
ENOUGH_S = 60.0
TEAMS = pytest.mark.skipif(not 2 <= len(ALLOWED) <= 128, reason="teams of 2 to 128 threads trade")


@pytest.fixture
def full_team() -> Iterator[None]:
    """As many threads as there are cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(ALLOWED))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def crowded(full_team: None) -> Iterator[None]:
    """Beside a full team two processes for each core."""
    program = "import time\nwhile True:\n sum(range(20_000)); time.sleep(0.0005)"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2 * len(ALLOWED))]
    yield
    for other in others:
        other.kill()
        other.wait()


def kernels_here() -> CpuKernels:
    kernels = load_kernels(torch.bfloat16, deterministic=True, environ=os.environ)
    assert isinstance(kernels, CpuKernels)
    return kernels


def allowed_cores_of_all() -> list[frozenset[int]]:
    """Those of every thread of this process."""
    tasks = os.listdir("/proc/self/task")
    return [frozenset(os.sched_getaffinity(int(task))) for task in tasks]


def bound_cores() -> list[int]:
    """Of every thread that may run on one core alone."""
    return sorted(core for cores in allowed_cores_of_all() if len(cores) == 1 for core in cores)


@pytest.fixture
def bound(full_team: None) -> Iterator[CpuKernels]:
    """Kernels whose threads are bound to all cores, until the test has ended."""
    kernels = kernels_here()
    kernels.native.assign_cores(kernels.isa, sorted(ALLOWED))
    yield kernels
    kernels.native.assign_cores(kernels.isa, [])
    kernels.linear(noise(1, 64).bfloat16(), kernels.pack_linear(noise(64, 64).bfloat16(), None))
    assert bound_cores() == []


@TEAMS
@pytest.mark.usefixtures("crowded")
def test_cores_are_traded_and_nothing_else_changes() -> None:
    kernels = kernels_here()
    packed = kernels.pack_linear(noise(4096, 1024).bfloat16(), None)
    x = noise(8, 1024).bfloat16()
    expected = kernels.linear(x, packed)
    before = kernels.native.num_core_trades(kernels.isa)
    deadline = time.monotonic() + ENOUGH_S
    while kernels.native.num_core_trades(kernels.isa) < before + 20:
        assert time.monotonic() < deadline, "no thread gave its core away"
        assert torch.equal(kernels.linear(x, packed), expected)
    assert set(allowed_cores_of_all()) == {frozenset(ALLOWED)}


@TEAMS
@pytest.mark.usefixtures("crowded")
def test_bound_threads_swap_their_cores(bound: CpuKernels) -> None:
    packed = bound.pack_linear(noise(4096, 1024).bfloat16(), None)
    x = noise(8, 1024).bfloat16()
    expected = bound.linear(x, packed)
    assert bound_cores() == sorted(ALLOWED)
    before = bound.native.num_core_trades(bound.isa)
    deadline = time.monotonic() + ENOUGH_S
    while bound.native.num_core_trades(bound.isa) < before + 20:
        assert time.monotonic() < deadline, "no thread swapped its core"
        assert torch.equal(bound.linear(x, packed), expected)
    assert bound_cores() == sorted(ALLOWED)


@TEAMS
def test_teams_of_another_size_are_not_bound(bound: CpuKernels) -> None:
    packed = bound.pack_linear(noise(64, 64).bfloat16(), None)
    assert bound_cores() == sorted(ALLOWED)
    bound.native.assign_cores(bound.isa, [*sorted(ALLOWED), max(ALLOWED) + 1])
    bound.linear(noise(1, 64).bfloat16(), packed)
    assert bound_cores() == []


@TEAMS
def test_a_core_that_is_not_to_be_had_binds_nobody(bound: CpuKernels) -> None:
    packed = bound.pack_linear(noise(64, 64).bfloat16(), None)
    bound.native.assign_cores(bound.isa, range(1000, 1000 + len(ALLOWED)))
    x = noise(1, 64).bfloat16()
    assert torch.equal(bound.linear(x, packed), bound.linear(x, packed))
    assert os.sched_getaffinity(0) == ALLOWED


@pytest.mark.usefixtures("crowded")
def test_none_is_traded_when_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFF_VARIABLE, TRADES)
    kernels = kernels_here()
    packed = kernels.pack_linear(noise(4096, 1024).bfloat16(), None)
    x = noise(8, 1024).bfloat16()
    before = kernels.native.num_core_trades(kernels.isa)
    for _ in range(2000):
        kernels.linear(x, packed)
    assert kernels.native.num_core_trades(kernels.isa) == before
    monkeypatch.delenv(OFF_VARIABLE)
    kernels_here()
