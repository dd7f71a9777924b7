"""The decode engine fetches while the prefill engine computes; the tokens stay what they are."""

import time
from dataclasses import replace

import pytest

from replicas.engine import Engine
from replicas.engine_commands import FinishChoice, Prefetch
from replicas.handoff import HandoffIn
from replicas.request import EngineRequest
from tests.replicas.engine_harness import prompt, submit
from tests.replicas.memory.pools import (
    GENERATION,
    Pools,
    ask,
    decode,
    entries_until,
    expected,
    has_ended,
    has_news,
    news_of,
    outward,
    prefill,
    rest,
    tokens_of,
)

LONG = prompt(66)
BLOCK_BYTES = 8 * 4


@pytest.fixture
def pools():
    made = Pools()
    yield made
    made.close()


def tell(engine: Engine, one: EngineRequest, *, deadline_s: float = 10.0) -> None:
    engine.inbox.put(Prefetch(replace(one, handoff=HandoffIn(GENERATION, deadline_s))))


def num_fetched_bytes(engine: Engine) -> int:
    # Its snapshots come with steps, and it makes none meanwhile.
    return engine._scheduler.tiers.stats().handoff_adopted_bytes_total


def step(engine: Engine, is_enough) -> None:
    """Let one engine alone go on."""
    deadline = time.monotonic() + 10.0
    while not is_enough():
        assert time.monotonic() < deadline
        engine.step()
        engine.check()
        engine.inbox.wait(0.002)


def computed_in_chunks(pools: Pools, one: EngineRequest, target: Engine):
    """The prefill engine's entries; before its last chunk, `target` has fetched the others."""
    source = pools.start(max_num_batched_tokens=32)
    submit(source, outward(one))
    while source.stats.computed_prompt_tokens_total < 64:
        source.step()
    step(target, lambda: num_fetched_bytes(target) >= 8 * BLOCK_BYTES)
    return source, entries_until(source, has_news)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_blocks_of_earlier_chunks_are_there_before_the_table(pools, async_scheduling):
    one = ask("a", LONG)
    target = pools.start(async_scheduling=async_scheduling)
    tell(target, one)
    source, computed = computed_in_chunks(pools, one, target)
    generated = decode(target, one, tokens_of(computed))
    assert news_of(generated).outcome == "adopted"
    assert news_of(generated).num_bytes < 17 * BLOCK_BYTES
    assert [*tokens_of(computed), *tokens_of(generated)] == expected(one)
    assert num_fetched_bytes(target) == 17 * BLOCK_BYTES
    rest(target)
    source.inbox.put(FinishChoice("a", 0, 0))
    rest(source)


def test_a_request_that_comes_while_its_blocks_do_waits_for_them(pools, monkeypatch):
    one = ask("a", LONG)
    target = pools.start()
    computed = prefill(pools.start(), one)
    tell(target, one)
    target.step()
    generated = decode(target, one, tokens_of(computed))
    assert news_of(generated).outcome == "adopted"
    assert [*tokens_of(computed), *tokens_of(generated)] == expected(one)
    rest(target)


def test_a_prefetch_whose_request_never_comes_ends_with_its_deadline(pools):
    one = ask("a", LONG)
    target = pools.start()
    tell(target, one, deadline_s=0.3)
    _source, _computed = computed_in_chunks(pools, one, target)
    rest(target)
    assert not target.has_work
    assert target.stats.num_held_slots == 0


def test_what_a_prefetch_held_is_told_to_be_free_when_its_time_is_over(pools):
    one = ask("a", LONG)
    target = pools.start()
    tell(target, one, deadline_s=1.0)
    computed_in_chunks(pools, one, target)
    submit(target, ask("b"))
    entries_until(target, has_ended)
    assert target.stats.tiers.num_pinned_host_slots > 0
    rest(target)
    assert target.stats.tiers.num_pinned_host_slots == 0


def test_a_prefetch_of_what_is_never_computed_costs_nothing(pools):
    target = pools.start()
    tell(target, ask("a", LONG), deadline_s=0.1)
    rest(target)
    assert target.stats.tiers.refused_handoffs_total == 0


def test_tables_of_other_tokens_bring_nothing(pools):
    target = pools.start()
    tell(target, ask("a", prompt(66, seed=4)), deadline_s=0.3)
    prefill(pools.start(), ask("a", LONG))
    rest(target)
    assert num_fetched_bytes(target) == 0


def test_a_word_that_comes_after_its_request_changes_nothing(pools):
    one = ask("a", LONG)
    target = pools.start()
    computed = prefill(pools.start(), one)
    generated = decode(target, one, tokens_of(computed))
    tell(target, one, deadline_s=0.2)
    assert [*tokens_of(computed), *tokens_of(generated)] == expected(one)
    rest(target)


def test_a_table_that_is_not_whole_is_not_adopted(pools):
    one = ask("a", LONG)
    source = pools.start(max_num_batched_tokens=32)
    submit(source, outward(one))
    while not len(pools.tables):
        source.step()
        time.sleep(0.002)
    generated = decode(pools.start(), one, expected(one)[:1])
    assert news_of(generated).outcome == "stale"
    assert [*expected(one)[:1], *tokens_of(generated)] == expected(one)
