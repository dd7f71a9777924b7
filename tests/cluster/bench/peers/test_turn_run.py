"""A turn keeps what its program told, also if it ends too early, and leaves no process behind."""

import os
import sys
import textwrap
from pathlib import Path

import pytest

from cluster.bench.peers.arms import Arm, Command, Setting
from cluster.bench.peers.plan import Turn
from cluster.bench.peers.process_table import family_pids
from cluster.bench.peers.turn_run import run_turn

HEAD = """
import json, subprocess, sys, time
def tell(**line):
    with open(sys.argv[sys.argv.index("--events") + 1], "a") as events:
        print(json.dumps(line), file=events)
now = time.monotonic()
for name in sys.argv[sys.argv.index("--only") + 1].split(","):
    tell(workload=name, began_at=now - 0.1, ended_at=now, figures={"seconds": 0.1})
"""
GOOD = HEAD + "tell(done=True, settings={'threads': 2}); sys.stdin.read()"
BAD = HEAD + "subprocess.Popen(['sleep', '60']); sys.exit('out of luck')"


def program(text: str) -> Arm:
    code = textwrap.dedent(text)
    return Arm("a program", lambda *_: Command((sys.executable, "-S", "-c", code)))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, tmp_path, tmp_path, num_cores=2)


def test_workloads_and_memory_of_a_program_are_kept(setting, tmp_path):
    turn = Turn("pagoda", 1, 1, ("W1", "W4", "memory"))
    result = run_turn(program(GOOD), turn, setting, tmp_path)
    assert [run.workload for run in result.runs] == ["W1", "W4", "memory"]
    assert result.runs[2].figures["peak_bytes"] > 1 << 20
    assert (result.error, result.settings) == ("", {"threads": 2})


def test_a_program_that_ends_early_keeps_what_it_finished_and_its_last_words(setting, tmp_path):
    result = run_turn(program(BAD), Turn("vllm", 1, 1, ("W1",)), setting, tmp_path)
    assert [run.workload for run in result.runs] == ["W1"]
    assert "ended with status 1: out of luck" in result.error


def test_nothing_that_a_program_started_outlives_its_turn(setting, tmp_path):
    before = set(family_pids(os.getpid()))
    for text in (GOOD, BAD):
        run_turn(program(text), Turn("vllm", 1, 1, ("W1",)), setting, tmp_path)
    assert set(family_pids(os.getpid())) <= before
