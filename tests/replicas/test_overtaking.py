"""Prompts that pass a step of outputs between its layers: when they may, and what becomes of it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.batch import Sampled
from replicas.engine_commands import Cancel
from replicas.overtaking import BRIEF_OUTPUT_TOKENS, MOST_WAITING
from replicas.step_in_flight import StepInFlight
from replicas.step_pipeline import ThreadedPipeline
from tests.replicas.engine_harness import (
    ManualClock,
    alone,
    engine,
    entries,
    prompt,
    request,
    run,
    submit,
    tokens,
)
from tests.replicas.test_engine_invariants import CONFIGS, traffic

LEAST = 8


class Service:
    """An engine whose step under way, one of outputs alone, stands still until `go_on`.

    The step is the first such in which a request has `context_len` tokens. The one before it, which
    gave that request as many, has been taken.
    """

    def __init__(self, *, num_running=4, context_len=6, max_tokens=20, **overrides):
        self._stands_still, self._may_go_on = threading.Event(), threading.Event()
        self._context_len = context_len
        chosen = {"num_blocks": 200, "max_prefill_tokens": LEAST, "async_scheduling": True}
        self.engine = engine(rest=self._rest, **{**chosen, **overrides})
        self.outputs = []
        self.sent = [
            request(f"r{i}", prompt(5, seed=i), max_tokens=max_tokens) for i in range(num_running)
        ]
        submit(self.engine, *self.sent)
        while not all(self._is_as_far(one) for one in self.sent):
            self.step()
        # Whoever came before that would pass at once.
        assert self._stands_still.wait(10)

    def _is_as_far(self, one):
        said = [entry for entry in entries(self.outputs) if entry.request_id == one.request_id]
        num_known = len(one.prompt_token_ids) + sum(len(entry.token_ids) for entry in said)
        return num_known >= self._context_len or any(entry.finish_reason for entry in said)

    def _rest(self, batch):
        is_outputs = batch.num_tokens == batch.num_rows
        if is_outputs and self._context_len in batch.context_lens:
            self._stands_still.set()
            assert self._may_go_on.wait(10)

    def tokens(self):
        return {(one.request_id, 0): [] for one in self.sent} | tokens(self.outputs)

    def step(self):
        output = self.engine.step()
        self.engine.check()
        if output is not None:
            self.outputs.append(output)
        return output

    def joined_by(self, *newcomers):
        """They come in while the step stands still; then everybody gets all tokens."""
        for one in newcomers:
            submit(self.engine, one)
            assert self.step() is None
        self._may_go_on.set()
        self.outputs += run(self.engine)
        self.engine.close()
        self.sent += newcomers

    @property
    def num_overtaken(self):
        return self.outputs[-1].stats.overtaking_prefills_total

    def first_of(self, request_id):
        """The number of the output with a request's first token, and its stats."""
        for index, output in enumerate(self.outputs):
            entries = [entry for entry in output.entries if entry.request_id == request_id]
            if any(entry.token_ids for entry in entries):
                return index, output.stats
        raise AssertionError(request_id)

    def check_tokens(self):
        found = self.tokens()
        for one in self.sent:
            assert found[one.request_id, 0] == alone(one)[one.request_id, 0], one.request_id


def newcomer(request_id="new", length=20, *, seed=9, max_tokens=10):
    return request(request_id, prompt(length, seed=seed), max_tokens=max_tokens)


def test_a_prompt_passes_the_step_of_outputs_that_it_finds():
    service = Service()
    service.joined_by(newcomer())
    index, stats = service.first_of("new")
    assert service.num_overtaken == 1
    assert (stats.num_prefill_tokens, stats.num_decode_tokens) == (20, 0)
    passed = service.outputs[index + 1].stats
    assert passed.step < stats.step
    assert (passed.num_prefill_tokens, passed.num_decode_tokens) == (0, 4)
    service.check_tokens()


@pytest.mark.parametrize(
    ("overrides", "length"),
    [
        ({"prefill_overtakes_decode": False}, 20),
        ({"max_prefill_tokens": 0}, 20),
        ({}, LEAST - 1),
        ({"max_num_seqs": 4}, 20),
        ({"max_tokens": BRIEF_OUTPUT_TOKENS}, 20),
    ],
    ids=["off", "no limit", "too short", "no slot", "brief outputs"],
)
def test_it_waits_for_the_next_step_if(overrides, length):
    service = Service(**overrides)
    service.joined_by(newcomer(length=length))
    assert service.num_overtaken == 0
    service.check_tokens()


def test_prompts_pass_one_after_the_other_as_long_as_a_step_has_room_for_them():
    """Three of 10 tokens where a step may have 32; the fourth comes with the outputs' next one."""
    service = Service()
    service.joined_by(*(newcomer(f"n{i}", 10, seed=20 + i) for i in range(4)))
    firsts = [service.first_of(f"n{i}") for i in range(4)]
    assert service.num_overtaken == 3
    assert [stats.num_decode_tokens for _index, stats in firsts[:3]] == [0, 0, 0]
    assert [stats.num_prefill_tokens for _index, stats in firsts] == [10] * 4
    assert firsts[3][1].num_decode_tokens == 7
    assert [index for index, _stats in firsts[:3]] == sorted(index for index, _ in firsts[:3])
    service.check_tokens()


def test_many_that_come_at_once_do_not_pass_the_step_that_they_find():
    service = Service(max_num_seqs=8)
    crowd = [newcomer(f"n{i}", 10, seed=20 + i) for i in range(MOST_WAITING + 1)]
    submit(service.engine, *crowd[:-1])
    service.joined_by(crowd[-1])
    service.sent += crowd[:-1]
    assert service.num_overtaken == 2
    stats = [service.first_of(one.request_id)[1] for one in crowd]
    assert [each.num_decode_tokens for each in stats] == [4, 0, 0]
    service.check_tokens()


def waiting_together(num_newcomers, **first):
    """They find a step that is not passed, as one of its requests has ended.

    Returns the service and, for each, the stats with its first token.
    """
    service = Service(max_num_seqs=7)
    service.engine.inbox.put(Cancel("r3", 0))
    others = [newcomer(f"n{i}", 10, seed=20 + i) for i in range(1, num_newcomers)]
    service.joined_by(newcomer("n0", 10, seed=20, **first), *others)
    service.sent = [one for one in service.sent if one.request_id != "r3"]
    service.check_tokens()
    return service, [service.first_of(f"n{i}")[1] for i in range(num_newcomers)]


def test_prompts_that_wait_together_pass_the_next_step_of_outputs():
    service, stats = waiting_together(2)
    assert service.num_overtaken == 2
    assert [each.num_decode_tokens for each in stats] == [0, 0]
    assert stats[0].step < stats[1].step


def test_where_many_wait_the_first_comes_in_with_the_outputs():
    service, stats = waiting_together(MOST_WAITING + 1)
    assert service.num_overtaken == 2
    assert [each.num_decode_tokens for each in stats] == [3, 0, 0]


def test_prompts_that_wait_together_come_in_with_an_output_that_is_brief():
    service, stats = waiting_together(MOST_WAITING + 1, max_tokens=BRIEF_OUTPUT_TOKENS)
    assert service.num_overtaken == 0
    assert [each.num_decode_tokens for each in stats] == [3, 4, 5]


def test_a_prompt_that_goes_on_is_not_passed():
    service = Service(long_prefill_token_threshold=8)
    service.joined_by(newcomer("long", 30, seed=8), newcomer())
    assert service.num_overtaken == 1
    assert service.first_of("long")[1].step < service.first_of("new")[1].step
    service.check_tokens()


def test_a_prompt_waits_for_blocks_that_the_step_writes():
    """Its first blocks are those of an output, whose last token is being computed just now."""
    service = Service(num_running=1, context_len=8)
    known = [*prompt(5, seed=0), *service.tokens()["r0", 0]]
    assert len(known) == 8
    service.joined_by(request("new", [*known, *prompt(12, seed=9)], max_tokens=6))
    assert service.num_overtaken == 0
    assert service.outputs[-1].stats.hit_tokens_total == 8
    service.check_tokens()


def test_a_prompt_waits_while_an_ended_request_still_has_a_row():
    """That row writes to a block which is nobody's, and may be the prompt's."""
    usual = alone(request("r0", prompt(5, seed=0), max_tokens=20))["r0", 0]
    assert usual[8] not in usual[:8]
    service = Service(num_running=2, context_len=14, end_token_ids=[usual[8]])
    assert service.engine.stats.finished_total == 1
    service.joined_by(
        request("new", prompt(20, seed=9), max_tokens=10, ignore_eos=True),
    )
    assert service.num_overtaken == 0
    assert service.tokens()["new", 0] == alone(newcomer())["new", 0]


# The pause before each row leaves a client time to come in while a step is computed.
UNHURRIED = {
    "async_scheduling": True,
    "max_prefill_tokens": 3,
    "rest": lambda _batch: time.sleep(0.0003),
}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_random_traffic_gives_each_client_the_tokens_it_gets_alone(overrides, seed):
    clients = traffic({**overrides, **UNHURRIED}, seed, num_operations=120)
    for (request_id, choice), ids in clients.tokens.items():
        usual = alone(clients.sent[request_id], max_model_len=48)[request_id, choice]
        assert ids == usual[: len(ids)], (request_id, choice)


def test_random_traffic_has_prompts_that_pass():
    clients = traffic({**UNHURRIED, "max_model_len": 48}, 5, num_operations=200)
    assert clients.engine.stats.overtaking_prefills_total > 3


def test_a_prompt_that_takes_the_only_slot_comes_in_with_the_outputs():
    service = Service(max_num_seqs=4)
    service.engine.inbox.put(Cancel("r3", 0))
    service.joined_by(newcomer("n0", seed=20), newcomer("n1", seed=21))
    assert service.first_of("n0")[1].num_decode_tokens == 3
    assert service.num_overtaken == 0
    service.sent = [one for one in service.sent if one.request_id != "r3"]
    service.check_tokens()


# One step, and the pipeline around it.


class Pausing:
    """Pauses when it is told to, and notes what it runs in which order."""

    def __init__(self):
        self.may_pause = threading.Semaphore(0)
        self.log = []

    def run(self, batch, nearly_done):
        raise AssertionError("it can pause")

    def run_pausing(self, batch, nearly_done, pause):
        self.log.append(f"{batch} begins")
        if batch == "prompt":
            if self.log[0] == "broken begins":
                raise ValueError("prompt failed")
        else:
            assert self.may_pause.acquire(timeout=10)
            pause.take()
            assert not pause.wanted[0], "it goes on, and would stop again at once"
        nearly_done()
        self.log.append(f"{batch} ends")
        return Sampled(np.zeros(0, dtype=np.int64))

    def close(self):
        pass


class Step:
    """Stands for a planned step: a pipeline looks at nothing but its batch."""

    decides_next = False

    def __init__(self, batch):
        self.batch = batch


@pytest.fixture
def held():
    runner, stirred = Pausing(), threading.Event()
    pipeline = ThreadedPipeline(runner, ThreadPoolExecutor(1), stirred)
    yield runner, pipeline, stirred
    pipeline.close()


def test_a_held_step_stands_still_until_the_other_has_passed(held):
    runner, pipeline, stirred = held
    pipeline.start(Step("outputs"))
    assert pipeline.overtakable().planned.batch == "outputs"
    assert pipeline.hold()
    runner.may_pause.release()
    assert pipeline.take_overtaker() is None
    pipeline.overtake([Step("prompt")])
    assert stirred.wait(10)
    assert not pipeline.wait_for_planning_time(), "the prompt's result is to be taken first"
    assert pipeline.take_overtaker().planned.batch == "prompt"
    assert pipeline.wait_for_planning_time()
    assert [each.planned.batch for each in pipeline.take().overtakers] == ["prompt"]
    assert runner.log == ["outputs begins", "prompt begins", "prompt ends", "outputs ends"]


def test_a_held_step_goes_on_if_nothing_comes_of_it(held):
    runner, pipeline, _stirred = held
    pipeline.start(Step("outputs"))
    assert pipeline.hold()
    runner.may_pause.release()
    pipeline.overtake([])
    assert pipeline.take().overtakers == []
    assert pipeline.take_overtaker() is None


def test_an_error_is_raised_where_the_overtaker_is_taken(held):
    runner, pipeline, stirred = held
    pipeline.start(Step("broken"))
    assert pipeline.hold()
    pipeline.overtake([Step("prompt")])
    runner.may_pause.release()
    assert stirred.wait(10)
    with pytest.raises(ValueError, match="prompt failed"):
        pipeline.take_overtaker()
    assert pipeline.take().planned.batch == "broken"


def test_a_step_that_is_nearly_done_is_not_held():
    step = StepInFlight(Step("outputs"))
    runner = Pausing()
    runner.may_pause.release()
    step.run(runner)
    assert not step.hold()


def test_who_holds_a_step_between_its_last_pause_and_its_end_passes_all_the_same():
    class Late(Pausing):
        def run_pausing(self, batch, nearly_done, pause):
            if batch == "outputs":
                assert step.hold()
                step.give([Step("prompt")])
            nearly_done()
            self.log.append(batch)
            return Sampled(np.zeros(0, dtype=np.int64))

    step, runner = StepInFlight(Step("outputs")), Late()
    step.run(runner)
    assert runner.log == ["prompt", "outputs"]
    assert step.ended.is_set()


def test_a_step_does_not_count_the_time_of_the_one_that_passes_it(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr("replicas.step_in_flight.time.perf_counter", clock)

    class Slow(Pausing):
        def run_pausing(self, batch, nearly_done, pause):
            clock.advance(5.0 if batch == "prompt" else 1.0)
            return super().run_pausing(batch, nearly_done, pause)

    step, runner = StepInFlight(Step("outputs")), Slow()
    assert step.hold()
    (overtaker,) = step.give([Step("prompt")])
    runner.may_pause.release()
    step.run(runner)
    assert (overtaker.run_s, step.run_s) == (5.0, 1.0)
