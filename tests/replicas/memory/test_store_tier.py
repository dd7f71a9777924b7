"""Engines that share a block store: what one computed, another finds; what fails is a miss."""

import time

import pytest

from kvstore.block_hash import root_hash
from kvstore.memory_store import Memory
from replicas.engine_commands import Cancel
from replicas.request import EngineRequest
from replicas.simulated_runner import SimulatedRunner
from tests.replicas.engine_harness import alone, entries, prompt, request, run, submit, tokens
from tests.replicas.memory.stores import (
    Engines,
    Gate,
    HookedStore,
    serve,
    settle,
    shared_memory_store,
)

PROMPT = prompt(26)


@pytest.fixture
def memory():
    return Memory(max_bytes=1 << 20, clock=time.monotonic)


@pytest.fixture
def engines(memory):
    made = Engines(lambda: shared_memory_store(memory))
    yield made
    made.close()


def ask(name: str, tokens: list[int] = PROMPT, **kwargs: object):
    return request(name, tokens, max_tokens=6, **kwargs)


def expected(one) -> list[int]:
    return alone(one)[one.request_id, 0]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_second_engine_serves_the_prefixes_of_the_first_after_it_is_gone(
    engines, async_scheduling
):
    first = engines.start(async_scheduling=async_scheduling)
    one = ask("a")
    assert serve(first, one)["a", 0] == expected(one)
    first.close()
    second = engines.start(async_scheduling=async_scheduling)
    again = ask("b", seed=3)
    assert serve(second, again)["b", 0] == expected(again)
    tiers = second.stats.tiers
    assert tiers.store_hit_tokens_total == 24
    assert tiers.fetched_blocks_total == 6
    assert second.stats.computed_prompt_tokens_total == 2
    second.close()


def test_cached_tokens_tell_of_what_the_store_gave(engines):
    first = engines.start()
    serve(first, ask("a"))
    first.close()
    second = engines.start()
    serve(second, ask("b"))
    assert second.stats.hit_tokens_total == 24
    second.close()


def test_what_the_store_has_not_is_computed(engines):
    first = engines.start()
    serve(first, ask("a", PROMPT[:12]))
    first.close()
    second = engines.start()
    one = ask("b")
    assert serve(second, one)["b", 0] == expected(one)
    assert second.stats.tiers.store_hit_tokens_total == 12
    second.close()


def test_two_tenants_share_nothing_in_the_store(engines):
    first = engines.start()
    serve(first, ask("a", tenant=b"one"))
    first.close()
    second = engines.start()
    serve(second, ask("b", tenant=b"two"))
    assert second.stats.tiers.lookups_total == 1
    assert second.stats.hit_tokens_total == 0
    second.close()


def test_without_prefix_caching_nothing_is_shared_through_the_store(engines):
    target = engines.start(enable_prefix_caching=False)
    serve(target, ask("a"))
    serve(target, ask("b"))
    assert target.stats.tiers.lookups_total == 0
    assert target.stats.tiers.stored_blocks_total == 0
    target.close()


@pytest.mark.parametrize(
    ("policy", "num_stored"), [("never", 0), ("on_second_use", 0), ("always", 7)]
)
def test_the_first_use_is_written_back_only_where_all_is(engines, policy, num_stored):
    target = engines.start(store_write_back=policy)
    serve(target, ask("a"))
    assert target.stats.tiers.stored_blocks_total == num_stored
    target.close()


def test_the_second_use_of_a_prefix_is_written_back(engines):
    target = engines.start(store_write_back="on_second_use")
    serve(target, ask("a"))
    serve(target, ask("b"))
    assert target.stats.tiers.stored_blocks_total == 6
    serve(target, ask("c"))
    assert target.stats.tiers.offered_blocks_total == 6, "what is stored is not offered again"
    target.close()


def test_blocks_that_are_reused_are_written_back_before(engines):
    target = engines.start(store_write_back="on_eviction", num_blocks=12)
    serve(target, ask("a"))
    assert target.stats.tiers.stored_blocks_total == 0
    serve(target, ask("b", prompt(40, seed=9)))
    assert target.stats.tiers.stored_blocks_total > 0
    target.close()


def test_a_store_that_never_answers_costs_a_request_the_timeout_and_no_more(memory):
    gate = Gate()
    made = Engines(lambda: HookedStore(shared_memory_store(memory), before=gate))
    target = made.start(fetch_timeout_s=0.2)
    gate.shut()
    one = ask("a")
    started = time.monotonic()
    try:
        submit(target, one)
        found = tokens(run(target))
        assert found["a", 0] == expected(one)
        assert 0.2 <= time.monotonic() - started < 2.0
        assert target.stats.tiers.lookups_late_total == 1
    finally:
        gate.open()
        target.close()
        made.close()


def test_others_run_while_one_waits_for_the_store(memory):
    gate = Gate()
    made = Engines(lambda: HookedStore(shared_memory_store(memory), before=gate))
    target = made.start(fetch_timeout_s=0.2)
    gate.shut()
    try:
        submit(target, ask("slow"), request("quick", prompt(3, seed=1), max_tokens=4))
        ends = [e.request_id for e in entries(run(target)) if e.finish_reason is not None]
        assert ends == ["quick", "slow"]
    finally:
        gate.open()
        target.close()
        made.close()


def test_a_store_that_fails_is_a_miss(memory):
    def fail(call: str) -> None:
        raise RuntimeError(f"{call} is broken")

    made = Engines(lambda: HookedStore(shared_memory_store(memory), before=fail))
    target = made.start()
    one = ask("a")
    assert serve(target, one)["a", 0] == expected(one)
    assert target.stats.tiers.stored_blocks_total == 0
    assert target.stats.tiers.num_pinned_host_slots == 0
    target.close()
    made.close()


def test_a_damaged_value_truncates_the_fetch_and_no_wrong_token_comes(engines, memory):
    first = engines.start()
    serve(first, ask("a"))
    first.close()
    damaged = [key for key, _ in memory.entries()][2]
    content = bytearray(memory.find(damaged) or b"")
    content[-1] ^= 1
    memory.replace(damaged, bytes(content))
    second = engines.start()
    one = ask("b")
    assert serve(second, one)["b", 0] == expected(one)
    tiers = second.stats.tiers
    assert tiers.short_fetches_total == 1
    assert tiers.fetched_blocks_total == 2
    second.close()


def test_engines_of_other_block_sizes_share_nothing_and_both_serve(engines, memory):
    first = engines.start()
    serve(first, ask("a"))
    first.close()
    layout = SimulatedRunner(num_blocks=1, block_size=8, max_num_seqs=1).layout
    others = Engines(lambda: shared_memory_store(memory, layout=layout))
    second = others.start(block_size=8)
    template = ask("b")
    one = EngineRequest(
        "b",
        template.prompt_token_ids,
        template.sampling,
        root=root_hash(fingerprint="test", block_size=8),
    )
    assert serve(second, one)["b", 0] == expected(template)
    assert second.stats.tiers.store_hit_tokens_total == 0
    assert second.stats.tiers.stored_blocks_total == 3
    second.close()
    others.close()


def test_a_crowd_with_one_prefix_asks_the_store_once(engines):
    first = engines.start()
    serve(first, ask("a"))
    first.close()
    second = engines.start()
    crowd = [ask(f"r{i}", [*PROMPT, i], seed=i) for i in range(6)]
    found = serve(second, *crowd)
    for one in crowd:
        assert found[one.request_id, 0] == expected(one)
    assert second.stats.tiers.fetches_total == 1
    second.close()


def test_a_request_that_is_cancelled_while_its_blocks_come_leaves_no_pin(engines, memory):
    from tests.replicas.engine_harness import run, submit

    first = engines.start()
    serve(first, ask("a"))
    first.close()
    second = engines.start()
    submit(second, ask("b"))
    second.step()
    second.inbox.put(Cancel("b", 0))
    run(second)
    time.sleep(0.05)
    second.step()
    settle(second)
    assert second.stats.num_running == 0
    second.close()


def test_a_host_tier_of_two_slots_fetches_no_more_than_fits(memory):
    made = Engines(lambda: shared_memory_store(memory))
    first = made.start()
    serve(first, ask("a"))
    first.close()
    small = Engines(lambda: shared_memory_store(memory), num_host_slots=2)
    second = small.start()
    one = ask("b")
    assert serve(second, one)["b", 0] == expected(one)
    assert second.stats.tiers.num_pinned_host_slots == 0
    second.close()
    made.close()
    small.close()


def test_under_preemption_with_a_store_everybody_gets_their_tokens(engines):
    target = engines.start(num_blocks=28, preemption_mode="swap", async_scheduling=True)
    crowd = [ask(f"r{i}", prompt(9 + i, seed=i), seed=i) for i in range(8)]
    found = serve(target, *crowd)
    for one in crowd:
        assert found[one.request_id, 0] == expected(one)
    target.close()
