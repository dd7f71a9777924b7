"""Choices of one request share its prompt's blocks, and a write never changes another's block."""

import pytest

from replicas.request_state import RequestState
from tests.replicas.engine_harness import (
    alone,
    config,
    engine,
    prompt,
    request,
    run,
    submit,
    tokens,
)

BLOCK_SIZE = 16


def roomy(**overrides):
    values = {
        "block_size": BLOCK_SIZE,
        "num_blocks": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_model_len": 2048,
    }
    return engine(config(**{**values, **overrides}))


def most_held_blocks(target):
    most = 0
    while target.step() is not None or target.has_work:
        target.check()
        most = max(most, target.stats.num_blocks - target.stats.num_free_blocks)
    return most


@pytest.mark.parametrize("num_prompt", [1024, 1030])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_eight_choices_hold_the_prompt_once_and_one_copied_block_each(num_prompt, is_async):
    target = roomy(async_scheduling=is_async)
    submit(target, request("a", prompt(num_prompt), num_choices=8, max_tokens=40))
    prompt_blocks, output_blocks = -(-num_prompt // BLOCK_SIZE), -(-40 // BLOCK_SIZE)
    assert most_held_blocks(target) <= prompt_blocks + 8 * output_blocks + 8
    target.close()


def test_forked_choices_compute_one_prompt_token_each():
    target = roomy()
    submit(target, request("a", prompt(1030), num_choices=8))
    run(target)
    stats = target.stats
    assert stats.computed_prompt_tokens_total == 1030 + 7
    assert stats.forks_total == 7
    assert stats.copied_blocks_total == 7


def test_a_request_with_one_choice_copies_nothing():
    target = roomy()
    submit(target, *(request(name, prompt(100)) for name in "abc"))
    run(target)
    assert target.stats.forks_total == target.stats.copied_blocks_total == 0


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("num_prompt", [1, 2, 4, 7, 8, 21])
def test_each_choice_gets_the_tokens_it_gets_without_forks(num_prompt, is_async):
    one = request("a", prompt(num_prompt), num_choices=6, max_tokens=9, seed=3)
    forked = engine(async_scheduling=is_async)
    submit(forked, one)
    # A wait of nothing: every choice computes for itself.
    assert tokens(run(forked)) == alone(one, max_num_seqs=1)
    forked.close()


def test_choices_without_room_for_all_of_them_still_get_their_own_tokens():
    one = request("a", prompt(21), num_choices=8, max_tokens=20, seed=5)
    crowded = engine(num_blocks=14, watermark=0.0)
    submit(crowded, one)
    assert tokens(run(crowded)) == alone(one)
    assert crowded.stats.preemptions_total > 0


def test_choices_that_end_with_their_first_token_do_not_wait_for_each_other():
    target = roomy()
    submit(target, request("a", prompt(10), num_choices=8, max_tokens=1))
    assert len(run(target)) <= 2


def test_the_last_prompt_token_is_never_shared():
    state = RequestState(request("a", range(5)), choice=0, arrived_at=0.0, max_model_len=64)
    assert state.num_common_tokens == 4
    state.tokens.extend([7, 8])
    assert state.num_common_tokens == 5
