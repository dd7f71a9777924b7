"""Beam search as arithmetic: exhaustive where it is small, by hand where rules meet."""

import itertools
import math
import random

import pytest

from replicas.beam_group import BeamGroup
from replicas.request import BeamSearch, FinishReason

END = 0


def likelihoods(prefix, vocab, seed):
    """A distribution that depends on the whole prefix, likeliest first."""
    weights = [random.Random(f"{seed}/{prefix}/{token}").random() + 0.05 for token in range(vocab)]
    total = sum(weights)
    found = [(token, math.log(weight / total)) for token, weight in enumerate(weights)]
    return sorted(found, key=lambda pair: -pair[1])


def searched(search, *, width, vocab=6, max_tokens=4, seed=0, ends=frozenset({END}), min_tokens=0):
    group = BeamGroup(
        search, width=width, end_token_ids=ends, max_tokens=max_tokens, min_tokens=min_tokens
    )
    prefixes = [()]
    while group.num_beams:
        found = [likelihoods(p, vocab, seed)[: group.num_candidates] for p in prefixes]
        branches = group.advance(found)
        prefixes = [(*prefixes[branch.parent], branch.token_id) for branch in branches]
    return group.outputs


def score_of(tokens, *, vocab, seed, length_penalty):
    total = sum(
        dict(likelihoods(tokens[:place], vocab, seed))[token] for place, token in enumerate(tokens)
    )
    return total / len(tokens) ** length_penalty


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_beams_for_every_output_find_the_best_ones_of_all(seed, length_penalty):
    vocab, max_tokens = 4, 3
    every = [
        tokens
        for length in range(1, max_tokens + 1)
        for tokens in itertools.product(range(vocab), repeat=length)
        if END not in tokens[:-1] and (tokens[-1] == END or length == max_tokens)
    ]
    scores = {
        tokens: score_of(tokens, vocab=vocab, seed=seed, length_penalty=length_penalty)
        for tokens in every
    }
    best = sorted(every, key=lambda tokens: -scores[tokens])[:5]
    found = searched(
        BeamSearch(length_penalty), width=80, vocab=vocab, max_tokens=max_tokens, seed=seed
    )
    whole = [(*one.token_ids, *([END] if one.stop_token_id == END else [])) for one in found[:5]]
    assert whole == best
    assert [one.score for one in found[:5]] == pytest.approx([scores[tokens] for tokens in best])


def test_one_beam_is_greedy():
    (found,) = searched(BeamSearch(), width=1, ends=frozenset(), max_tokens=5)
    greedy = ()
    for _ in range(5):
        greedy = (*greedy, likelihoods(greedy, 6, 0)[0][0])
    assert found.token_ids == greedy
    assert found.reason is FinishReason.LENGTH


def test_outputs_come_best_first_and_as_many_as_beams():
    found = searched(BeamSearch(), width=3, max_tokens=6)
    assert len(found) == 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_no_output_ends_before_its_least_length():
    found = searched(BeamSearch(), width=4, max_tokens=5, min_tokens=3)
    assert all(len(one.token_ids) >= 3 for one in found)


def test_early_stopping_ends_with_as_many_outputs_as_beams():
    group = BeamGroup(
        BeamSearch(early_stopping=True), width=1, end_token_ids=frozenset({END}), max_tokens=9
    )
    assert group.advance([[(END, -0.1), (1, -0.2)]]) == ()
    (output,) = group.outputs
    assert (output.token_ids, output.stop_token_id) == ((), END)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_beam_that_could_score_higher_goes_on_unless_told_to_stop_early(early_stopping):
    search = BeamSearch(length_penalty=2.0, early_stopping=early_stopping)
    group = BeamGroup(search, width=2, end_token_ids=frozenset({END}), max_tokens=9)
    group.advance([[(1, -0.1), (END, -0.3), (2, -0.4), (3, -6.0)]])
    branches = group.advance([[(END, -0.05), (1, -0.2), (2, -3.0), (3, -4.0)], [(1, -5.0)] * 4])
    assert len(group.outputs) == 2
    assert len(branches) == (0 if early_stopping else 2)


def test_a_token_that_ends_counts_only_among_the_best_candidates():
    group = BeamGroup(BeamSearch(), width=1, end_token_ids=frozenset({END}), max_tokens=9)
    (branch,) = group.advance([[(1, -0.1), (END, -0.2)]])
    assert branch.token_id == 1
    assert group.outputs == ()
