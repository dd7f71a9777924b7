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


@pytest.fixture
def crowded() -> Iterator[None]:
    """As many threads as there are cores, and beside them two processes for each core."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(ALLOWED))
    program = "import time\nwhile True:\n sum(range(20_000)); time.sleep(0.0005)"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2 * len(ALLOWED))]
    yield
    for other in others:
        other.kill()
        other.wait()
    torch.set_num_threads(before)


def kernels_here() -> CpuKernels:
    kernels = load_kernels(torch.bfloat16, deterministic=True, environ=os.environ)
    assert isinstance(kernels, CpuKernels)
    return kernels


def allowed_cores() -> set[frozenset[int]]:
    """Of every thread of this process."""
    return {frozenset(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}


@pytest.mark.skipif(not 2 <= len(ALLOWED) <= 16, reason="teams of 2 to 16 threads trade")
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
    assert allowed_cores() == {frozenset(ALLOWED)}


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
