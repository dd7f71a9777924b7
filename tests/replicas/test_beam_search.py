"""Beam search through the whole engine: the same outputs whatever room, neighbours and timing."""

import pytest

from replicas.beam_group import BeamGroup
from replicas.engine_commands import Cancel
from replicas.request import BeamSearch, FinishReason
from replicas.simulated_runner import _distribution, _mix
from tests.replicas.engine_harness import (
    VOCAB_SIZE,
    engine,
    entries,
    prompt,
    request,
    run,
    submit,
)

ENDS = frozenset({7})


def beam_request(name="a", length=10, *, width=4, max_tokens=8, search=None, **sampling):
    search = search or BeamSearch()
    return request(
        name, prompt(length), num_choices=width, max_tokens=max_tokens, beam=search, **sampling
    )


def outputs_of(found):
    """By choice: the tokens, the end token and the reason of the only entry that has any."""
    ends = [entry for entry in entries(found) if entry.finish_reason is not None]
    assert not [e for e in entries(found) if e.token_ids and e.finish_reason is None]
    return {
        (entry.request_id, entry.choice): (entry.token_ids, entry.stop_token_id) for entry in ends
    }


def digest_of(tokens):
    digest = 0
    for token in tokens:
        digest = _mix(digest ^ (token + 1))
    return digest


def plainly_searched(one, *, ends=ENDS):
    """The same search without an engine: every prefix is computed from its first token on."""
    group = BeamGroup(
        one.sampling.beam,
        width=one.num_choices,
        end_token_ids=ends,
        max_tokens=one.sampling.max_tokens,
        min_tokens=one.sampling.min_tokens,
    )
    prefixes = [one.prompt_token_ids]
    while group.num_beams:
        likeliest = []
        for prefix in prefixes:
            own = _distribution(digest_of(prefix), VOCAB_SIZE).tolist()
            ranked = sorted(range(VOCAB_SIZE), key=lambda token, own=own: -own[token])
            likeliest.append([(t, own[t]) for t in ranked[: group.num_candidates]])
        branches = group.advance(likeliest)
        prefixes = [(*prefixes[branch.parent], branch.token_id) for branch in branches]
    return {
        (one.request_id, choice): (output.token_ids, output.stop_token_id)
        for choice, output in enumerate(group.outputs)
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("length", [1, 4, 10])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_an_engine_finds_what_a_plain_search_finds(width, length, is_async):
    one = beam_request(length=length, width=width)
    target = engine(end_token_ids=ENDS, async_scheduling=is_async)
    submit(target, one)
    assert outputs_of(run(target)) == plainly_searched(one)
    target.close()


@pytest.mark.parametrize(
    "search", [BeamSearch(0.0), BeamSearch(2.0), BeamSearch(early_stopping=True)]
)
def test_every_kind_of_search_is_exact(search):
    one = beam_request(search=search, max_tokens=12, min_tokens=3)
    target = engine(end_token_ids=ENDS)
    submit(target, one)
    assert outputs_of(run(target)) == plainly_searched(one)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("limits", [{"num_blocks": 12}, {"max_num_seqs": 2}, {"num_blocks": 9}])
def test_a_search_without_room_for_its_beams_finds_the_same(limits, is_async):
    one = beam_request(length=21, width=6, max_tokens=10)
    target = engine(end_token_ids=ENDS, async_scheduling=is_async, watermark=0.0, **limits)
    submit(target, one)
    assert outputs_of(run(target)) == plainly_searched(one)
    assert target.stats.preemptions_total > 0
    target.close()


def test_searches_beside_other_requests_find_what_they_find_alone():
    searches = [beam_request(f"s{i}", 6 + i, width=3) for i in range(4)]
    others = [request(f"o{i}", prompt(9 + i), num_choices=2) for i in range(4)]
    target = engine(end_token_ids=ENDS, num_blocks=30, watermark=0.0)
    submit(target, *(one for pair in zip(searches, others, strict=True) for one in pair))
    found = {
        (entry.request_id, entry.choice): (entry.token_ids, entry.stop_token_id)
        for entry in entries(run(target))
        if entry.request_id.startswith("s") and entry.finish_reason is not None
    }
    for one in searches:
        expected = plainly_searched(one)
        assert {key: found[key] for key in expected} == expected


def test_beams_share_the_prompts_blocks():
    target = engine(end_token_ids=ENDS, num_blocks=64)
    submit(target, beam_request(length=41, width=5, max_tokens=4))
    most = 0
    while target.step() is not None or target.has_work:
        target.check()
        most = max(most, target.stats.num_blocks - target.stats.num_free_blocks)
    assert most <= 10 + 5 * 2
    assert target.stats.forks_total > 0


def test_a_cancelled_search_leaves_nothing_behind():
    target = engine(end_token_ids=ENDS)
    submit(target, beam_request(max_tokens=30))
    for _ in range(4):
        target.step()
    target.inbox.put(Cancel("a", 0))
    found = outputs_of(run(target))
    assert set(found) == {("a", choice) for choice in range(4)}
    assert target.stats.num_free_blocks == target.config.num_blocks


def test_a_search_shows_life_while_it_has_nothing_to_tell():
    target = engine(end_token_ids=ENDS)
    submit(target, beam_request())
    silent = [entry for entry in entries(run(target)) if entry.finish_reason is None]
    assert len(silent) > 2


def test_log_probabilities_of_an_output_sum_to_its_score():
    one = beam_request(width=2, num_logprobs=2)
    target = engine(end_token_ids=ENDS)
    submit(target, one)
    for entry in entries(run(target)):
        if entry.finish_reason is None:
            continue
        num_tokens = len(entry.token_ids) + (entry.stop_token_id is not None)
        assert len(entry.logprobs) == num_tokens
        assert all(len(each.top) == 2 for each in entry.logprobs)
        assert entry.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert entry.timeline is not None
        assert entry.timeline.first_token_at is not None
