"""Guessing goes on where it pays and stops where it does not, by itself."""

import random

import pytest

from replicas.request_state import RequestState
from replicas.speculation.config import SpeculationConfig
from replicas.speculation.ngram_drafter import MAX_TOKENS_A_STEP, NgramDrafter
from replicas.speculation.speculation import Speculation
from tests.replicas.engine_harness import request

NGRAM = SpeculationConfig(speculative_method="ngram", num_speculative_tokens=4)


def cpu_step_s(num_tokens):
    """Nearly flat up to 8 tokens, then 1 ms each: the shape of a small model on two cores."""
    return 0.011 + 0.0002 * num_tokens + 0.001 * max(0, num_tokens - 8)


def state_of(tokens, *, max_tokens=10_000):
    origin = request("r", tokens, max_tokens=max_tokens)
    return RequestState(origin, choice=0, arrived_at=0.0, max_model_len=1_000_000)


def unmeasured(config=NGRAM):
    is_on = config.speculative_method == "ngram"
    return Speculation(config, NgramDrafter(config) if is_on else None)


def speculation_of(config=NGRAM):
    found = unmeasured(config)
    for num_tokens in range(1, 65):
        found.note_step(num_tokens, seconds=cpu_step_s(num_tokens))
    return found


def drafts_of(speculation, states, *, most=100):
    depths = speculation.depths(states, num_tokens=len(states), most=most)
    return speculation.draft(depths) if depths else {}


def decode(speculation, states, next_token, *, num_steps=200):
    """Guesses of every step while each state goes on with next_token(state)."""
    sizes = []
    for _ in range(num_steps):
        drafts = drafts_of(speculation, states)
        sizes.append(sum(len(draft) for draft in drafts.values()))
        for state in states:
            draft = drafts.get(state, ())
            sampled = []
            for _place in range(len(draft) + 1):
                sampled.append(next_token(state, len(state.tokens) + len(sampled)))
            if draft:
                del sampled[1 + speculation.verify(state, draft, sampled) :]
            state.tokens.extend(sampled)
        speculation.note_step(len(states) + sizes[-1], seconds=cpu_step_s(len(states) + sizes[-1]))
    return sizes


def periodic(_state, place):
    return place % 23


def test_text_that_repeats_is_guessed_to_the_full_depth():
    speculation, state = speculation_of(), state_of([0, 1, 2])
    sizes = decode(speculation, [state], periodic)
    assert sizes[60:] == [4] * 140
    stats = speculation.stats()
    assert stats.num_accepted_tokens_total > 0.95 * stats.num_draft_tokens_total
    assert len(state.tokens) > 900 > 4 * 200


def test_random_text_is_soon_left_alone():
    rng = random.Random(1)
    speculation = speculation_of()
    states = [state_of([0, 1, 2])]
    decode(speculation, states, lambda _state, _place: rng.randrange(30), num_steps=800)
    later = decode(speculation, states, lambda _state, _place: rng.randrange(30), num_steps=400)
    assert sum(later) < 0.15 * 400


def test_a_newcomer_learns_from_those_before():
    rng = random.Random(1)
    speculation = speculation_of()
    decode(speculation, [state_of([0])], lambda *_: rng.randrange(30), num_steps=800)
    sizes = decode(speculation, [state_of([0])], lambda *_: rng.randrange(30), num_steps=200)
    assert sum(sizes) < 0.15 * 200


def test_a_full_batch_is_left_alone_even_where_text_mostly_repeats():
    rng = random.Random(2)

    def mostly_periodic(_state, place):
        return place % 23 if rng.random() < 0.8 else 99

    speculation = speculation_of()
    few, many = [[state_of([index]) for index in range(count)] for count in (1, 40)]
    decode(speculation, many, mostly_periodic, num_steps=100)
    assert sum(decode(speculation, many, mostly_periodic, num_steps=100)) < 0.02 * 100 * 40
    assert sum(decode(speculation, few, mostly_periodic, num_steps=200)[60:]) > 2 * 140


def test_text_that_begins_to_repeat_is_found_out_without_a_guess_that_costs():
    rng = random.Random(3)
    speculation, state = speculation_of(), state_of([0, 1, 2])
    decode(speculation, [state], lambda *_: rng.randrange(1000), num_steps=300)
    before = speculation.stats().num_draft_tokens_total
    state.tokens.extend(periodic(state, place) for place in range(69))
    assert speculation.stats().num_draft_tokens_total == before
    assert len(drafts_of(speculation, [state])[state]) == 4


def test_guesses_begin_after_a_token_that_is_still_being_sampled():
    speculation = speculation_of()
    state = state_of([*range(23)] * 3)
    state.num_unresolved = 1
    assert drafts_of(speculation, [state])[state] == (1, 2, 3, 4)


@pytest.mark.parametrize("left", [1, 2, 3, 9])
def test_no_guess_leads_past_max_tokens(left):
    tokens = [*range(23)] * 3
    state = state_of(tokens, max_tokens=left)
    (draft,) = drafts_of(speculation_of(), [state]).values() or [()]
    assert len(draft) == min(4, left - 1)


def test_guesses_keep_to_the_room_that_is_left():
    states = [state_of([*range(23)] * 3) for _ in range(4)]
    drafts = drafts_of(speculation_of(), states, most=5)
    assert sum(len(draft) for draft in drafts.values()) == 5
    assert drafts_of(speculation_of(), states, most=0) == {}


def test_nothing_is_guessed_before_a_step_was_measured():
    state = state_of([*range(23)] * 3)
    assert drafts_of(unmeasured(), [state]) == {}


def test_a_long_prompt_is_taken_in_over_several_steps():
    speculation = speculation_of()
    state = state_of([place % 23 for place in range(3 * MAX_TOKENS_A_STEP)])
    found = [bool(drafts_of(speculation, [state])) for _ in range(3)]
    assert found == [False, False, True]


def test_nothing_is_kept_of_requests_that_ended():
    drafter = NgramDrafter(NGRAM)
    states = [state_of([1, 2, 3]) for _ in range(3)]
    drafter.look_at(states)
    for state in states:
        drafter.forget(state)
        drafter.forget(state)
    assert len(drafter) == 0


def test_off_means_that_nobody_guesses():
    speculation = speculation_of(SpeculationConfig("off"))
    assert not speculation.is_on
    assert drafts_of(speculation, [state_of([*range(23)] * 3)]) == {}
    assert speculation.stats().accepted_per_position == ()


def test_what_was_tried_is_counted_as_vllm_counts_it():
    speculation = speculation_of()
    speculation.verify(state_of([0]), (1, 2, 3), [1, 2, 9, 9])
    speculation.verify(state_of([0]), (1, 2), [7, 7, 7])
    stats = speculation.stats()
    assert stats.num_drafts_total == 2
    assert stats.num_draft_tokens_total == 5
    assert stats.num_accepted_tokens_total == 2
    assert stats.accepted_per_position == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"speculative_method": "medusa"},
        {"num_speculative_tokens": 0},
        {"prompt_lookup_min": 5},
        {"speculative_method": "draft_model"},
        {"speculative_model": "some/model"},
    ],
)
def test_a_setting_that_makes_no_sense_names_itself(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)) + "|speculative_model"):
        SpeculationConfig(**wrong)
