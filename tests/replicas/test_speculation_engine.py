"""The engine with guesses: the same tokens in fewer steps, whatever happens on the way."""

import random
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine_commands import Cancel
from replicas.request import BeamSearch, FinishReason
from replicas.speculation.config import SpeculationConfig
from tests.replicas.engine_harness import (
    ManualClock,
    config,
    engine,
    entries,
    request,
    run,
    submit,
    tokens,
)
from tests.replicas.test_engine_invariants import CONFIGS, Traffic

# So few that what came before often comes again, and as often does not.
VOCAB = 3
NGRAM = SpeculationConfig(speculative_method="ngram", num_speculative_tokens=4, prompt_lookup_min=1)


def as_many_as_fit(chances, *, num_tokens, most, costs):
    depths = []
    for own in chances:
        depths.append(min(len(own), most))
        most -= depths[-1]
    return depths


@contextmanager
def guessing_always():
    """The simulated runner takes no time, so that nothing would seem to pay."""
    with patch("replicas.speculation.speculation.choose_depths", as_many_as_fit):
        yield


def engine_of(*, speculates=True, **overrides):
    values = {"vocab_size": VOCAB, "speculation": NGRAM if speculates else SpeculationConfig("off")}
    return engine(**{**values, **overrides})


def served(*requests, speculates=True, **overrides):
    """Tokens, ends and statistics of these requests."""
    target = engine_of(speculates=speculates, **overrides)
    submit(target, *requests)
    with guessing_always():
        outputs = run(target)
    target.close()
    return outputs, target


def few_tokens(length, *, seed=0):
    return random.Random(seed).choices(range(VOCAB), k=length)


def accepted(target):
    return target.stats.speculation.num_accepted_tokens_total


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_same_tokens_come_in_fewer_steps(async_scheduling):
    one = request("r", few_tokens(10), max_tokens=60)
    usual, plain = served(one, speculates=False, async_scheduling=async_scheduling)
    found, target = served(one, async_scheduling=async_scheduling)
    assert tokens(found) == tokens(usual)
    assert accepted(target) > 10
    assert target.stats.step < plain.stats.step - 10


def test_log_probabilities_come_with_their_tokens():
    one = request("r", few_tokens(10), max_tokens=40, num_logprobs=2)
    usual, found = (served(one, speculates=speculates)[0] for speculates in (False, True))

    def logprobs(outputs):
        return [each for entry in entries(outputs) for each in entry.logprobs]

    assert logprobs(found) == logprobs(usual)
    assert len(logprobs(found)) == 40


def test_an_end_token_among_the_guesses_ends_the_request_there():
    for seed in range(30):
        one = request("r", few_tokens(10, seed=seed), max_tokens=40, min_tokens=7)
        usual, found = (
            served(one, speculates=speculates, end_token_ids=[2])[0] for speculates in (False, True)
        )
        assert tokens(found) == tokens(usual)
        ends = [
            [(entry.finish_reason, entry.stop_token_id, entry.index + len(entry.token_ids))]
            for outputs in (usual, found)
            for entry in entries(outputs)
            if entry.finish_reason
        ]
        assert ends[0] == ends[1]
        assert ends[0][0][0] is FinishReason.STOP


def test_forks_go_on_as_they_would_have():
    one = request("r", few_tokens(11), max_tokens=30, num_choices=4, seed=3)
    usual, found = (served(one, speculates=speculates)[0] for speculates in (False, True))
    assert tokens(found) == tokens(usual)


def test_a_beam_search_and_whoever_needs_the_last_token_are_not_guessed_for():
    search = request("b", few_tokens(9), max_tokens=12, num_choices=3, beam=BeamSearch())
    masked = request("m", few_tokens(9), max_tokens=40, needs_last_token=True)
    usual, _plain = served(search, masked, speculates=False)
    found, target = served(search, masked)
    assert tokens(found) == tokens(usual)
    assert target.stats.speculation.num_drafts_total == 0


def test_a_step_keeps_to_its_token_budget():
    requests = [request(f"r{n}", few_tokens(6, seed=n), max_tokens=40) for n in range(6)]
    outputs, target = served(*requests, max_num_batched_tokens=9)
    assert accepted(target) > 0
    assert max(out.stats.num_decode_tokens + out.stats.num_prefill_tokens for out in outputs) <= 9


def test_guesses_take_nobodys_blocks():
    """A batch that just fits has no block to spare, and nobody is preempted for a guess."""
    requests = [request(f"r{n}", few_tokens(8, seed=n), max_tokens=20) for n in range(4)]
    _outputs, target = served(*requests, num_blocks=4 * 7, watermark=0.0, headroom_blocks=0)
    assert target.stats.preemptions_total == 0
    assert accepted(target) > 0


def test_what_was_guessed_wrong_leaves_no_block_behind():
    one = request("r", few_tokens(10), max_tokens=60)
    target = engine_of()
    submit(target, one)
    with guessing_always():
        while (output := target.step()) is not None or target.has_work:
            target.check()
            if output is not None and output.stats.num_running:
                num_held = target.config.num_blocks - output.stats.num_free_blocks
                assert num_held <= 1 + (output.stats.num_filled_slots - 1) // 4 + 1
    assert target.stats.num_free_blocks == target.config.num_blocks


def test_only_blocks_of_known_tokens_are_told_of():
    one = request("r", few_tokens(10), max_tokens=60)

    def stored(outputs):
        events = [event for output in outputs for event in output.kv_events]
        return [
            (name, event.token_ids)
            for event in events
            if event.kind == "stored"
            for name in event.block_hashes
        ]

    usual, found = (served(one, speculates=speculates)[0] for speculates in (False, True))
    assert stored(found) == stored(usual)


def test_a_cached_prefix_written_beside_wrong_guesses_is_right():
    """Whoever finds the blocks of a request that guessed gets the tokens of one that did not."""
    first = request("a", few_tokens(10), max_tokens=60)
    target = engine_of()
    submit(target, first)
    with guessing_always():
        prompt_of_second = [*first.prompt_token_ids, *tokens(run(target))["a", 0]]
        second = request("b", prompt_of_second[:50], max_tokens=20)
        submit(target, second)
        found = tokens(run(target))
    assert target.stats.hit_tokens_total > 40
    assert found == tokens(served(second, speculates=False)[0])


def test_a_cancelled_request_takes_its_guesses_along():
    target = engine_of(async_scheduling=True)
    submit(target, *[request(f"r{n}", few_tokens(6, seed=n), max_tokens=60) for n in range(4)])
    with guessing_always():
        for _ in range(9):
            target.step()
            target.check()
        for n in range(4):
            target.inbox.put(Cancel(f"r{n}", 0))
        run(target)
    target.close()
    assert target.stats.num_free_blocks == target.config.num_blocks
    assert len(target._scheduler.speculation._drafter) == 0


SPECULATION = st.builds(
    SpeculationConfig,
    speculative_method=st.just("ngram"),
    num_speculative_tokens=st.integers(1, 9),
    prompt_lookup_min=st.integers(1, 2),
    prompt_lookup_max=st.integers(2, 4),
)


class RepetitiveTraffic(Traffic):
    """Clients whose prompts have few different tokens."""

    def send(self) -> None:
        request_id = f"r{len(self.sent)}"
        shared = few_tokens(self.rng.choice([0, 8, 16]), seed=self.rng.randint(0, 1))
        own = few_tokens(self.rng.randint(1, 18), seed=self.rng.randrange(1000))
        num_choices = self.rng.choice([1, 1, 1, 3])
        self.sent[request_id] = request(
            request_id,
            [*shared, *own],
            max_tokens=self.rng.randint(1, 20),
            num_choices=num_choices,
            seed=self.rng.randint(0, 3),
            min_tokens=self.rng.choice([0, 0, 1]),
            num_logprobs=self.rng.choice([None, None, 0, 2]),
            needs_last_token=self.rng.random() < 0.1,
            stop_token_ids=(2,) if self.rng.random() < 0.2 else (),
        )
        submit(self.engine, self.sent[request_id])


def alone(one):
    """The tokens of a request that has an engine without guesses to itself."""
    return tokens(served(one, speculates=False, max_model_len=48, num_blocks=64)[0])


def check_traffic(overrides, speculation, seed, num_operations):
    clock = ManualClock()
    target = engine(config(**overrides, speculation=speculation), clock=clock, vocab_size=VOCAB)
    clients = RepetitiveTraffic(target, clock, random.Random(seed))
    with guessing_always():
        for _ in range(num_operations):
            clients.operate()
        clients.settle()
    target.close()
    for (request_id, choice), ids in clients.tokens.items():
        usual = alone(clients.sent[request_id]).get((request_id, choice), [])
        assert ids == usual[: len(ids)], (request_id, choice)
    assert len(target._scheduler.speculation._drafter) == 0


@settings(max_examples=8, deadline=None, derandomize=True)
@given(overrides=CONFIGS, speculation=SPECULATION, seed=st.integers(0, 2**32))
def test_random_traffic_gets_the_tokens_that_each_client_gets_alone_without_guesses(
    overrides, speculation, seed
):
    check_traffic(overrides, speculation, seed, num_operations=80)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(overrides=CONFIGS, speculation=SPECULATION, seed=st.integers(0, 2**32))
def test_much_random_traffic_gets_the_tokens_that_each_client_gets_alone(
    overrides, speculation, seed
):
    check_traffic(overrides, speculation, seed, num_operations=250)
