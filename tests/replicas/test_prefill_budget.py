"""Prompts that would only make each other late come one after the other."""

import pytest

from tests.replicas.engine_harness import engine, prompt, request, run, submit

BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True])


def prefills_of_steps(target):
    """Prompt tokens of each step that had some, to the end."""
    counts = [output.stats.num_prefill_tokens for output in run(target)]
    return [count for count in counts if count]


@BOTH_MODES
def test_prompts_that_fill_the_processor_come_one_after_the_other(async_scheduling):
    target = engine(
        num_blocks=200,
        max_num_batched_tokens=64,
        max_prefill_tokens=16,
        async_scheduling=async_scheduling,
    )
    submit(target, *(request(f"r{i}", prompt(20, seed=i), max_tokens=9) for i in range(3)))
    assert prefills_of_steps(target) == [20, 20, 20]


def test_prompts_that_leave_the_processor_room_share_a_step():
    target = engine(num_blocks=200, max_num_batched_tokens=64, max_prefill_tokens=16)
    submit(target, *(request(f"r{i}", prompt(6, seed=i), max_tokens=9) for i in range(4)))
    assert prefills_of_steps(target) == [18, 6]


def test_a_piece_of_a_long_prompt_keeps_others_for_the_next_step():
    target = engine(
        num_blocks=200,
        max_num_batched_tokens=64,
        max_prefill_tokens=16,
        long_prefill_token_threshold=24,
    )
    submit(target, request("long", prompt(60)), request("short", prompt(20, seed=1)))
    assert prefills_of_steps(target) == [24, 24, 12 + 20]


def test_beside_many_outputs_more_prompts_come_in():
    target = engine(
        num_blocks=400, max_num_seqs=32, max_num_batched_tokens=96, max_prefill_tokens=8
    )
    submit(target, *(request(f"r{i}", prompt(2, seed=i), max_tokens=40) for i in range(20)))
    while target.stats.num_running < 20:
        target.step()
    submit(target, *(request(f"p{i}", prompt(9, seed=30 + i), max_tokens=9) for i in range(4)))
    assert prefills_of_steps(target) == [27, 9]
