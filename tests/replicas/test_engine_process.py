"""The engine core as a process: it serves, it dies alone, and never outlives its parent."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_client import EngineStartError, ProcessEngine, ThreadEngine
from replicas.request import EngineRequest, FinishReason, SamplingParams
from tests.replicas.tiny_models import random_prompts, save_tiny

# Starting a core imports torch: a few seconds each.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    tiny = save_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    tiny.prepared.save()
    return EngineConfig(
        model=tiny.prepared.folder,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256),
        num_blocks_override=256,
        num_threads=1,
        deterministic=True,
        dtype="float32",
    )


class Listener:
    """Collects what an engine says; both callbacks come from the engine's own threads."""

    def __init__(self):
        self.entries = queue.Queue()
        self.exits = queue.Queue()

    def on_output(self, output):
        for entry in output.entries:
            self.entries.put(entry)

    def ended(self, count):
        """Last entries of `count` choices, by request id."""
        ends = {}
        while len(ends) < count:
            entry = self.entries.get(timeout=DEADLINE_S)
            if entry.finish_reason is not None:
                ends[entry.request_id] = entry
        return ends


def start(kind, config):
    listener = Listener()
    return kind(config, on_output=listener.on_output, on_exit=listener.exits.put), listener


def request(request_id, *, max_tokens=8, seed=0):
    (ids,) = random_prompts([12], seed=seed)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id, tuple(ids), sampling, root=bytes(32))


@pytest.mark.parametrize("kind", [ProcessEngine, ThreadEngine])
def test_an_engine_elsewhere_serves_cancels_and_finishes(kind, config):
    engine, listener = start(kind, config)
    assert engine.info.num_blocks == 256
    engine.submit(request("whole"))
    engine.submit(request("gone", max_tokens=240, seed=1))
    engine.submit(request("stopped", max_tokens=240, seed=2))
    engine.cancel("gone", 0)
    engine.finish_choice("stopped", 0, 0)
    ends = listener.ended(3)
    assert {name: entry.finish_reason for name, entry in ends.items()} == {
        "whole": FinishReason.LENGTH,
        "gone": FinishReason.CANCELLED,
        "stopped": FinishReason.STOP_STRING,
    }
    engine.close()
    assert listener.exits.empty()


def test_a_killed_core_is_told_once_and_another_can_be_started(config):
    engine, listener = start(ProcessEngine, config)
    engine.submit(request("r", max_tokens=240))
    os.kill(engine.pid, signal.SIGKILL)
    assert "ended with status -9" in listener.exits.get(timeout=DEADLINE_S)
    engine.submit(request("late"))
    engine.close()
    assert listener.exits.empty()
    again, listener = start(ProcessEngine, config)
    again.submit(request("r"))
    assert listener.ended(1)["r"].finish_reason is FinishReason.LENGTH
    again.close()


def test_a_core_that_cannot_start_says_why(config, tmp_path):
    with pytest.raises(EngineStartError, match="pagoda.json"):
        start(ProcessEngine, EngineConfig(model=str(tmp_path)))


def test_closing_ends_the_process(config):
    engine, _listener = start(ProcessEngine, config)
    pid = engine.pid
    engine.close()
    assert not psutil.pid_exists(pid)


def test_a_core_does_not_outlive_its_parent(config):
    code = f"""
        import time
        from replicas.config import EngineConfig, SchedulerConfig
        from replicas.engine_client import ProcessEngine
        if __name__ == "__main__":
            config = EngineConfig(model={config.model!r}, num_blocks_override=64, num_threads=1)
            engine = ProcessEngine(config, on_output=print, on_exit=print)
            print(engine.pid, flush=True)
            time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    core = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    core.wait(timeout=DEADLINE_S)


def test_two_thousand_requests_come_and_go_without_growth(config):
    """Ten rounds of 200 requests, three in ten of which are cancelled at random moments."""
    engine, listener = start(ProcessEngine, config)
    core = psutil.Process(engine.pid)
    sizes = []
    for round_number in range(10):
        names = [f"{round_number}-{index}" for index in range(200)]
        for index, name in enumerate(names):
            engine.submit(request(name, max_tokens=1 + index % 20, seed=index))
            if index % 10 in (1, 4, 8):
                time.sleep(0.001 * (index % 7))
                engine.cancel(name, 0)
        listener.ended(200)
        sizes.append(core.memory_info().rss)
    assert max(sizes[2:]) - sizes[2] < 32 * 1024 * 1024, sizes
    engine.close()


def cores_of_threads(pid):
    """For every thread of a process, the cores that it may run on."""
    return [os.sched_getaffinity(int(task)) for task in os.listdir(f"/proc/{pid}/task")]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single thread is not bound")
@pytest.mark.parametrize("num_threads", [0, 1])
def test_threads_are_bound_where_there_is_one_for_every_core(num_threads, config):
    engine, listener = start(ProcessEngine, replace(config, num_threads=num_threads))
    engine.submit(request("whole"))
    assert listener.ended(1)["whole"].finish_reason is FinishReason.LENGTH
    allowed = os.sched_getaffinity(0)
    bound = [cores for cores in cores_of_threads(engine.pid) if len(cores) == 1]
    assert sorted(bound, key=min) == (
        [{core} for core in sorted(allowed)] if not num_threads else []
    )
    assert os.sched_getaffinity(engine.pid) == allowed, "the thread that plans is free"
    engine.close()


def test_threads_are_counted_before_openmp_binds_one(monkeypatch, config):
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    engine, _listener = start(ProcessEngine, replace(config, num_threads=0))
    assert engine.info.num_threads == len(os.sched_getaffinity(0))
    engine.close()
