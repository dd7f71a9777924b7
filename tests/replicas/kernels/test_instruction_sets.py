"""Which instruction set a processor is thought to be quickest with."""

import os
import platform
from pathlib import Path

import pytest

from replicas.kernels.cpu.native import instruction_sets, load_native

pytestmark = pytest.mark.slow


def names() -> list[str]:
    return list(instruction_sets(load_native(os.environ)))


def test_every_processor_has_the_portable_one_and_none_twice() -> None:
    assert names()[-1] == "portable"
    assert len(names()) == len(set(names()))


@pytest.mark.skipif(platform.system() != "Linux", reason="asks /proc for the maker")
def test_pairs_of_bf16_come_first_only_where_they_are_quick() -> None:
    if "avx512_bf16" not in names():
        pytest.skip("this processor cannot multiply pairs of bf16")
    is_intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    assert names()[:2] == (
        ["avx512_vnni", "avx512_bf16"] if is_intel else ["avx512_bf16", "avx512_vnni"]
    )
