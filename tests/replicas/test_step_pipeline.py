"""Steps in flight: in order, one ready while another computes, errors where they are awaited."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replicas.batch import Sampled
from replicas.step_pipeline import InlinePipeline, ThreadedPipeline
from tests.replicas.engine_harness import config, engine, prompt, request, submit, tokens


def threaded(runner):
    return ThreadedPipeline(runner, ThreadPoolExecutor(1))


class GatedRunner:
    """Lets each step end only when it is told to, and notes the order."""

    def __init__(self):
        self.started = []
        self.may_end = threading.Semaphore(0)
        self.closed = False

    def run(self, batch, nearly_done):
        self.started.append(batch)
        nearly_done()
        assert self.may_end.acquire(timeout=10)
        return Sampled(np.zeros(0, dtype=np.int64))

    def close(self):
        self.closed = True


class Step:
    """Stands for a planned step: the pipeline looks at nothing but its batch."""

    def __init__(self, batch):
        self.batch = batch


def test_one_step_computes_while_the_next_is_ready():
    runner = GatedRunner()
    pipeline = threaded(runner)
    pipeline.start(Step("first"))
    pipeline.wait_for_planning_time()
    pipeline.start(Step("second"))
    assert pipeline.is_full
    assert runner.started == ["first"]
    runner.may_end.release(2)
    assert pipeline.take().planned.batch == "first"
    assert not pipeline.is_full
    assert pipeline.take().planned.batch == "second"
    assert pipeline.num_in_flight == 0
    pipeline.close()
    assert runner.closed


def test_waiting_for_planning_time_ends_early_for_what_cannot_wait():
    stirred, may_end = threading.Event(), threading.Event()

    class SlowRunner(GatedRunner):
        def run(self, batch, nearly_done):
            assert may_end.wait(10)
            nearly_done()
            return Sampled(np.zeros(0, dtype=np.int64))

    pipeline = ThreadedPipeline(SlowRunner(), ThreadPoolExecutor(1), stirred)
    assert pipeline.wait_for_planning_time()
    pipeline.start(Step("slow"))
    stirred.set()
    assert not pipeline.wait_for_planning_time()
    stirred.clear()
    may_end.set()
    assert pipeline.wait_for_planning_time()
    pipeline.take()
    pipeline.close()


def test_planning_waits_until_the_last_started_step_is_nearly_done():
    passed = threading.Event()

    class Slow(GatedRunner):
        def run(self, batch, nearly_done):
            assert not passed.wait(0.05), "planning went ahead of nearly_done"
            nearly_done()
            assert passed.wait(10)
            return Sampled(np.zeros(0, dtype=np.int64))

    pipeline = threaded(Slow())
    pipeline.start(Step("only"))
    pipeline.wait_for_planning_time()
    passed.set()
    pipeline.take()
    pipeline.close()


@pytest.mark.parametrize("pipeline_of", [InlinePipeline, threaded])
def test_an_error_is_raised_where_its_step_is_taken(pipeline_of):
    class Broken(GatedRunner):
        def run(self, batch, nearly_done):
            raise ValueError("step failed")

    pipeline = pipeline_of(Broken())
    pipeline.start(Step("only"))
    pipeline.wait_for_planning_time()
    with pytest.raises(ValueError, match="step failed"):
        pipeline.take()
    pipeline.close()


def test_planning_ahead_costs_at_most_one_discarded_token_a_request():
    one = request("r", prompt(6), max_tokens=30)
    target = engine(config(async_scheduling=False))
    submit(target, one)
    usual = tokens(target.run_until_idle())["r", 0]
    num_rows = {}
    for async_scheduling in (False, True):
        target = engine(config(async_scheduling=async_scheduling), end_token_ids=[usual[10]])
        submit(target, one)
        num_rows[async_scheduling] = sum(
            output.stats.num_rows for output in target.run_until_idle()
        )
        target.close()
    assert num_rows[False] <= num_rows[True] <= num_rows[False] + 1
