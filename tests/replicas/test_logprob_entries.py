"""Whoever asks for log probabilities gets them with every token; nobody else pays or sees any."""

import math

from tests.replicas.engine_harness import engine, entries, prompt, request, run, submit


def test_each_token_comes_with_as_many_log_probabilities_as_were_asked_for():
    target = engine()
    submit(
        target,
        request("none", prompt(5)),
        request("own", prompt(6), num_logprobs=0),
        request("three", prompt(7), num_logprobs=3),
    )
    for entry in entries(run(target)):
        expected = {"none": None, "own": 0, "three": 3}[entry.request_id]
        if expected is None or not entry.token_ids:
            assert entry.logprobs == ()
            continue
        (found,) = entry.logprobs
        assert math.isfinite(found.logprob)
        assert len(found.top) == expected
        likelihoods = [logprob for _token_id, logprob in found.top]
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert not likelihoods or found.logprob <= likelihoods[0]


def test_an_end_token_has_its_log_probability_too():
    usual = engine()
    one = request("a", prompt(5), num_logprobs=1, max_tokens=6)
    submit(usual, one)
    tokens = [entry.token_ids[0] for entry in entries(run(usual)) if entry.token_ids]
    target = engine(end_token_ids=[tokens[3]])
    submit(target, one)
    *_before, last = entries(run(target))
    assert last.stop_token_id == tokens[3]
    assert len(last.logprobs) == 1
