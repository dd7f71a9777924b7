"""An agent's session re-sends all it has said so far; only what is new is computed."""

import random

import pytest

from tests.replicas.engine_harness import (
    VOCAB_SIZE,
    config,
    engine,
    entries,
    prompt,
    request,
    run,
    submit,
    tokens,
)

BLOCK_SIZE = 16
NUM_STEPS = 20


def roomy(**overrides):
    values = {
        "block_size": BLOCK_SIZE,
        "num_blocks": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": 4096,
    }
    return engine(config(**{**values, **overrides}))


def play(target, *, seed, num_steps=NUM_STEPS):
    """A session of tool calls: (tokens that were new, tokens that were computed) of each step."""
    rng = random.Random(seed)
    context = prompt(400, seed=seed)
    steps = []
    num_sent_before = 0
    for step in range(num_steps):
        before = target.stats.computed_prompt_tokens_total
        submit(target, request(f"{seed}/{step}", context, max_tokens=24, session_id=f"{seed}"))
        output = tokens(target.run_until_idle())[f"{seed}/{step}", 0]
        computed = target.stats.computed_prompt_tokens_total - before
        steps.append((len(context) - num_sent_before, computed))
        num_sent_before = len(context)
        tool_answer = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(10, 60))]
        context = [*context, *output, *tool_answer]
    return steps


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_session_of_twenty_steps_computes_only_what_is_new(is_async):
    target = roomy(async_scheduling=is_async)
    for step, (new, computed) in enumerate(play(target, seed=1)):
        # What fills no whole block has no name: at most one block is computed again.
        assert computed <= new + BLOCK_SIZE, f"step {step}"
    target.close()


def test_a_sessions_hits_are_reported():
    target = roomy()
    play(target, seed=1, num_steps=1)
    context = prompt(400, seed=1)
    submit(target, request("again", context, max_tokens=1))
    first = next(entry for entry in entries(run(target)) if entry.token_ids)
    assert first.num_cached_tokens == (400 - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("eviction_policy", ["lru", "lfu"])
def test_sessions_in_turn_keep_their_blocks_while_there_is_room(eviction_policy):
    target = roomy(eviction_policy=eviction_policy)
    for seed in (1, 2, 3):
        for new, computed in play(target, seed=seed, num_steps=6):
            assert computed <= new + BLOCK_SIZE


def test_most_of_an_agents_prompt_is_found():
    target = roomy()
    play(target, seed=4)
    stats = target.stats
    assert stats.hit_tokens_total / stats.prompt_tokens_total > 0.85
