"""What the snapshot after a step says of the work that is left."""

from tests.replicas.engine_harness import engine, prompt, request, run, submit


def test_prompt_tokens_are_left_until_a_step_takes_them():
    target = engine(num_blocks=200, max_num_batched_tokens=16, max_num_seqs=2)
    submit(target, *(request(f"r{n}", prompt(40, seed=n), max_tokens=4) for n in range(3)))
    stats = target.step().stats
    queued = stats.num_waiting_tokens + stats.num_prompt_tokens_left
    assert (stats.num_prefill_tokens, queued) == (16, 104)
    stats = target.step().stats
    assert stats.num_waiting_tokens + stats.num_prompt_tokens_left == 88
    last = run(target)[-1].stats
    assert last.num_waiting_tokens + last.num_prompt_tokens_left == 0


def test_a_prefix_that_is_found_is_not_left():
    target = engine(num_blocks=200, max_num_batched_tokens=16)
    submit(target, request("first", prompt(40), max_tokens=2))
    run(target)
    submit(target, request("second", prompt(40), max_tokens=2))
    assert target.step().stats.num_prompt_tokens_left == 0
