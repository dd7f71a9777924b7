"""Every arm gets the same limits, and only one that is installed takes part."""

import dataclasses
from pathlib import Path

import pytest

from cluster.bench.peers.arms import ARMS, Setting
from cluster.bench.peers.environments import plain_environment
from cluster.bench.peers.rows import ROWS

SETTING = Setting(Path("/m"), Path("/w"), Path("/nowhere"), num_cores=2, ours=("dtype=float32",))


def test_every_row_compares_arms_that_there_are():
    assert {arm for row in ROWS for arm in (row.ours, row.theirs)} == set(ARMS)


def test_a_peer_without_its_environment_is_not_installed():
    absences = {name: arm.absence(SETTING) for name, arm in ARMS.items()}
    assert absences["vllm-serve"] == absences["openvino"] == "not installed"
    assert absences["pagoda"] == absences["pagoda-serve"] == ""


@pytest.mark.parametrize("name", ["pagoda", "pagoda-int8"])
def test_our_engine_gets_the_limits_and_what_was_asked_for(name):
    arguments = ARMS[name].command(SETTING, 0).arguments
    assert {"--set=max_num_seqs=32", f"--set=kv_cache_memory_bytes={4 << 30}"} <= set(arguments)
    assert "--set=dtype=float32" in arguments
    assert ("--set=quantization=int8" in arguments) == (name == "pagoda-int8")


def test_our_service_gets_the_same_as_flags():
    arguments = ARMS["pagoda-serve"].command(SETTING, 8123).arguments
    assert {"--port=8123", "--max-num-seqs=32", "--dtype=float32"} <= set(arguments)


@pytest.mark.parametrize(("name", "is_off"), [("pagoda", True), ("pagoda-as-it-starts", False)])
def test_our_engine_guesses_only_as_it_starts(name, is_off):
    assert ("--set=speculative_method=off" in ARMS[name].command(SETTING, 0).arguments) is is_off


@pytest.mark.parametrize(
    ("name", "is_off"), [("pagoda-serve", True), ("pagoda-serve-as-it-starts", False)]
)
def test_our_service_guesses_only_as_it_starts(name, is_off):
    assert ("--speculative-method=off" in ARMS[name].command(SETTING, 0).arguments) is is_off


def test_vllm_gets_its_memory_and_all_cores_by_its_environment():
    command = ARMS["vllm"].command(SETTING, 0)
    assert command.variables["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert command.variables["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert command.arguments[0] == "/nowhere/vllm/bin/python"


def test_no_engine_inherits_threads_or_settings_from_whoever_starts_it():
    theirs = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PAGODA_PORT": "1", "VLLM_USE_V1": "0"}
    assert plain_environment(theirs) == {"PATH": "/bin"}


def test_a_variable_for_the_peers_goes_before_what_is_advised():
    setting = dataclasses.replace(SETTING, theirs=("VLLM_CPU_KVCACHE_SPACE=1",))
    for name in ("vllm", "vllm-serve", "openvino"):
        assert ARMS[name].command(setting, 0).variables["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_openvino_reads_the_weights_of_its_arm():
    arguments = ARMS["openvino-int8"].command(SETTING, 0).arguments
    assert "/nowhere/openvino-models/int8" in arguments
    assert arguments[arguments.index("--cache-gib") + 1] == "4"
