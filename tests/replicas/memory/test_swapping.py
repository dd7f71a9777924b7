"""Preempted requests whose blocks wait in host memory: same tokens, nothing computed twice."""

import pytest

from replicas.engine import Engine
from replicas.engine_commands import ClearCache
from tests.replicas.engine_harness import alone, engine, prompt, request, run, submit, tokens

# Eight requests of up to 36 tokens, and room for three of them.
TIGHT: dict[str, object] = {"num_blocks": 28, "num_host_slots": 64, "max_num_seqs": 8}


def crowd(seed: int = 0, **sampling: object) -> list:
    return [
        request(f"r{i}", prompt(9 + i, seed=10 * seed + i), max_tokens=20, seed=i, **sampling)
        for i in range(8)
    ]


def serve(target: Engine, requests: list) -> dict[tuple[str, int], list[int]]:
    try:
        submit(target, *requests)
        return tokens(run(target))
    finally:
        target.close()


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("preemption_mode", ["swap", "recompute", "auto"])
def test_every_request_gets_its_own_tokens_however_it_was_preempted(
    preemption_mode, async_scheduling
):
    target = engine(**TIGHT, preemption_mode=preemption_mode, async_scheduling=async_scheduling)
    requests = crowd()
    found = serve(target, requests)
    assert target.stats.preemptions_total > 0
    for one in requests:
        assert found[one.request_id, 0] == alone(one)[one.request_id, 0]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_swapped_request_computes_nothing_twice(async_scheduling):
    target = engine(**TIGHT, preemption_mode="swap", async_scheduling=async_scheduling)
    serve(target, crowd())
    stats = target.stats
    assert stats.tiers.swaps_total == stats.preemptions_total > 0
    assert stats.discarded_tokens_total == 0
    assert stats.computed_prompt_tokens_total == stats.prompt_tokens_total
    assert stats.tiers.copied_out_blocks_total == stats.tiers.swapped_blocks_total > 0


def test_a_swapped_request_goes_on_with_its_tail_where_it_was():
    target = engine(**TIGHT, preemption_mode="swap")
    requests = crowd()
    submit(target, *requests)
    outputs = run(target)
    target.close()
    assert target.stats.preemptions_total > 0
    num_computed = sum(o.stats.num_prefill_tokens + o.stats.num_decode_tokens for o in outputs)
    # Every known token once, but for the last of each request, which nobody reads.
    assert num_computed == sum(len(one.prompt_token_ids) + 20 - 1 for one in requests)


def test_a_recomputed_request_loses_its_tokens_and_that_is_counted():
    target = engine(**TIGHT, preemption_mode="recompute")
    serve(target, crowd())
    assert target.stats.tiers.recomputes_total == target.stats.preemptions_total > 0
    assert target.stats.tiers.swaps_total == 0
    assert target.stats.discarded_tokens_total > 0


def test_without_host_memory_every_preemption_is_a_recompute():
    target = engine(num_blocks=28, max_num_seqs=8, preemption_mode="swap")
    serve(target, crowd())
    assert target.stats.tiers.recomputes_total == target.stats.preemptions_total > 0
    assert target.stats.tiers.copied_out_blocks_total == 0


def test_a_host_tier_that_is_too_small_saves_what_it_can():
    target = engine(num_blocks=28, max_num_seqs=8, num_host_slots=2, preemption_mode="swap")
    requests = crowd()
    found = serve(target, requests)
    assert target.stats.tiers.swaps_total > 0
    assert target.stats.discarded_tokens_total > 0
    for one in requests:
        assert found[one.request_id, 0] == alone(one)[one.request_id, 0]


def test_nothing_stays_pinned_once_everybody_has_ended():
    target = engine(**TIGHT, preemption_mode="swap")
    serve(target, crowd())
    assert target.stats.tiers.num_pinned_host_slots == 0


def test_both_sides_of_an_automatic_choice_are_counted():
    target = engine(**TIGHT, preemption_mode="auto")
    serve(target, crowd())
    tiers = target.stats.tiers
    assert tiers.swaps_total + tiers.recomputes_total == target.stats.preemptions_total
    assert tiers.swap_recompute_s_estimated_total > 0.0


def test_a_cleared_cache_leaves_nothing_findable_in_host_memory():
    target = engine(**TIGHT, store_write_back="always")
    serve_once = [request("a", prompt(17), max_tokens=1)]
    submit(target, *serve_once)
    run(target)
    assert target.stats.tiers.num_held_host_slots > 0
    target.inbox.put(ClearCache())
    submit(target, request("b", prompt(17), max_tokens=1))
    run(target)
    assert target.stats.hit_tokens_total == 0
    target.close()


def test_blocks_that_left_the_device_are_found_in_host_memory():
    target = engine(num_blocks=12, num_host_slots=32, store_write_back="always")
    submit(target, request("a", prompt(24), max_tokens=1))
    run(target)
    submit(target, request("b", prompt(40, seed=5), max_tokens=1))
    run(target)
    submit(target, request("c", prompt(24), max_tokens=1))
    outputs = run(target)
    assert target.stats.tiers.host_hit_tokens_total > 0
    assert tokens(outputs)["c", 0] == alone(request("c", prompt(24), max_tokens=1))["c", 0]
    target.close()


def test_the_second_use_of_a_block_keeps_it_beyond_the_device():
    target = engine(num_blocks=32, num_host_slots=32, store_write_back="on_second_use")
    submit(target, request("a", prompt(24), max_tokens=1))
    run(target)
    assert target.stats.tiers.num_held_host_slots == 0
    submit(target, request("b", prompt(24), max_tokens=1))
    run(target)
    assert target.stats.tiers.num_held_host_slots == 5
    target.close()
