"""The engine with a small model that guesses: it sees what it must, and no token changes."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine import Engine
from replicas.simulated_runner import SimulatedRunner, _mix
from replicas.speculation.config import SpeculationConfig
from replicas.speculation.draft_batch import DraftBatch
from tests.replicas.engine_harness import (
    VOCAB_SIZE,
    ManualClock,
    config,
    prompt,
    request,
    run,
    submit,
    tokens,
)
from tests.replicas.test_engine_invariants import CONFIGS, Traffic
from tests.replicas.test_speculation_engine import guessing_always

DRAFT = SpeculationConfig(
    speculative_method="draft_model", speculative_model="small", num_speculative_tokens=4
)


class RunnerWithOracle(SimulatedRunner):
    """Its small model knows the model's arithmetic, so each guess is right as long as what it
    kept in the blocks is; now and then it is made to err.
    """

    def __init__(self, *, num_blocks, block_size, err_every=0, **others):
        super().__init__(num_blocks=num_blocks, block_size=block_size, **others)
        self._size = block_size
        self._kept = np.zeros(num_blocks * block_size, dtype=np.uint64)
        self._err_every = err_every
        self.num_guesses = 0
        self.num_draft_tokens = 0

    def draft(self, batch: DraftBatch):
        guesses = [[] for _ in batch.depths]
        pass_, rows = batch.first, range(len(batch.depths))
        for index in range(max(1, *batch.depths)):
            if index:
                last = np.array([own[-1] for own in guesses], dtype=np.int64)
                pass_, rows = batch.further(index, last, self._size)
            for number, row in enumerate(rows):
                guesses[row].append(self._guess(pass_, number))
        return guesses

    def _guess(self, batch, row):
        start, stop = int(batch.query_start[row]), int(batch.query_start[row + 1])
        first = int(batch.positions[start])
        digest = 0
        if first:
            block = int(batch.block_tables[row, (first - 1) // self._size])
            digest = int(self._kept[block * self._size + (first - 1) % self._size])
        for index in range(start, stop):
            digest = _mix(digest ^ (int(batch.token_ids[index]) + 1))
            self._kept[batch.slot_mapping[index]] = digest
        self.num_draft_tokens += stop - start
        self.num_guesses += 1
        errs = self._err_every and self.num_guesses % self._err_every == 0
        token = _mix(_mix(digest ^ _mix(0)) + int(batch.context_lens[row])) % self._vocab_size
        return (token + bool(errs)) % self._vocab_size


def engine_of(*, err_every=0, clock=None, **overrides):
    scheduler = config(**{"speculation": DRAFT, **overrides})
    runner = RunnerWithOracle(
        num_blocks=scheduler.num_blocks,
        block_size=scheduler.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        vocab_size=VOCAB_SIZE,
        err_every=err_every,
    )
    return Engine(scheduler, runner, clock=clock or ManualClock()), runner


def served(*requests, **overrides):
    target, runner = engine_of(**overrides)
    submit(target, *requests)
    with guessing_always():
        found = tokens(run(target))
    target.close()
    return found, target, runner


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_small_model_that_is_right_saves_four_of_five_steps(async_scheduling):
    one = request("r", prompt(10), max_tokens=60)
    usual, plain, _runner = served(
        one, speculation=SpeculationConfig("off"), async_scheduling=async_scheduling
    )
    found, target, _runner = served(one, async_scheduling=async_scheduling)
    assert found == usual
    stats = target.stats.speculation
    assert stats.num_accepted_tokens_total == stats.num_draft_tokens_total > 40
    assert target.stats.step <= plain.stats.step / 5 + 4


def test_a_small_model_that_errs_changes_no_token():
    requests = [request(f"r{n}", prompt(10, seed=n), max_tokens=50) for n in range(4)]
    usual, _plain, _runner = served(*requests, speculation=SpeculationConfig("off"))
    found, target, _runner = served(*requests, err_every=3)
    assert found == usual
    stats = target.stats.speculation
    assert 0 < stats.num_accepted_tokens_total < stats.num_draft_tokens_total


def test_it_sees_each_token_about_once():
    one = request("r", prompt(40), max_tokens=60)
    _found, _target, runner = served(one)
    assert runner.num_draft_tokens <= 40 + 60 + 60 / 5 + 8


def test_preempted_requests_are_caught_up_with_anew():
    requests = [request(f"r{n}", prompt(12, seed=n), max_tokens=40) for n in range(6)]
    few = {"num_blocks": 30, "watermark": 0.0}
    usual, _plain, _runner = served(*requests, speculation=SpeculationConfig("off"), **few)
    found, target, _runner = served(*requests, **few)
    assert found == usual
    assert target.stats.preemptions_total > 0
    stats = target.stats.speculation
    assert stats.num_accepted_tokens_total == stats.num_draft_tokens_total > 0


def test_nothing_is_kept_of_requests_that_ended():
    _found, target, _runner = served(*[request(f"r{n}", prompt(9, seed=n)) for n in range(5)])
    assert len(target._scheduler.speculation._drafter) == 0
    assert target.stats.num_free_blocks == target.config.num_blocks


def check_traffic(overrides, seed, err_every, num_operations):
    clock = ManualClock()
    target, _runner = engine_of(
        **{**overrides, "num_host_slots": 0}, clock=clock, err_every=err_every
    )
    clients = Traffic(target, clock, random.Random(seed))
    with guessing_always():
        for _ in range(num_operations):
            clients.operate()
        clients.settle()
    target.close()
    for (request_id, choice), ids in clients.tokens.items():
        usual, _plain, _runner = served(
            clients.sent[request_id],
            speculation=SpeculationConfig("off"),
            max_model_len=48,
        )
        assert ids == usual[request_id, choice][: len(ids)], (request_id, choice)


TRAFFIC = given(overrides=CONFIGS, seed=st.integers(0, 2**32), err_every=st.sampled_from([0, 2, 5]))


@settings(max_examples=5, deadline=None, derandomize=True)
@TRAFFIC
def test_random_traffic_gets_the_tokens_that_each_client_gets_alone(overrides, seed, err_every):
    check_traffic(overrides, seed, err_every, num_operations=70)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@TRAFFIC
def test_much_random_traffic_gets_the_tokens_that_each_client_gets_alone(
    overrides, seed, err_every
):
    check_traffic(overrides, seed, err_every, num_operations=250)
