"""The stand-in for a model gives log-probabilities that depend on the prefix alone."""

import numpy as np

from replicas.request import SamplingParams
from replicas.simulated_runner import SimulatedRunner
from tests.replicas.tiny_models import BLOCK_SIZE, NUM_BLOCKS, Part, batch_of, paged_requests

PROMPT = list(range(3, 12))


def runner() -> SimulatedRunner:
    return SimulatedRunner(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=8, vocab_size=60
    )


def part(prompt: list[int], num_logprobs: int | None, *, slot: int = 0) -> Part:
    request = paged_requests([prompt] * (slot + 1), seed=1)[slot]
    params = SamplingParams(max_tokens=1, seed=5, num_logprobs=num_logprobs)
    return Part(request, 0, len(prompt), params)


def test_log_probabilities_are_those_of_a_distribution_and_the_likeliest_come_first() -> None:
    sampled = runner().run(batch_of([part(PROMPT, 60)]), lambda: None)
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    assert sampled.logprobs is not None
    assert sorted(sampled.top_ids[0].tolist()) == list(range(60))
    assert np.all(np.diff(sampled.top_logprobs[0]) <= 0)
    assert abs(np.exp(sampled.top_logprobs[0].astype(np.float64)).sum() - 1) < 1e-5
    place = sampled.top_ids[0].tolist().index(int(sampled.token_ids[0]))
    assert sampled.logprobs[0] == sampled.top_logprobs[0, place]


def test_equal_prefixes_have_equal_distributions_whoever_stands_beside_them() -> None:
    alone = runner().run(batch_of([part(PROMPT, 4)]), lambda: None)
    parts = [part(PROMPT[:-1], None), part(PROMPT, 4, slot=1)]
    among = runner().run(batch_of(parts), lambda: None)
    assert alone.top_ids is not None
    assert among.top_ids is not None
    assert alone.top_ids[0].tolist() == among.top_ids[1].tolist()
    assert among.logprobs is not None
    assert np.isnan(among.logprobs[0])


def test_nobody_asks_nothing_is_given() -> None:
    assert runner().run(batch_of([part(PROMPT, None)]), lambda: None).logprobs is None
