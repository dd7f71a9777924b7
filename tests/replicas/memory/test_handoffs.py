"""One engine computes the prompt, another the output: the tokens are those of a single engine."""

import threading
import time
from dataclasses import replace

import pytest

from kvstore.errors import StoreUnavailable
from kvstore.handoff_table import decode_table, encode_table, table_key
from kvstore.memory_store import Memory
from replicas.engine_commands import Cancel, FinishChoice
from replicas.request import FinishReason, TokenEntry
from tests.replicas.engine_harness import prompt, request, submit
from tests.replicas.memory.pools import (
    GENERATION,
    PROMPT,
    Pools,
    ask,
    decode,
    entries_until,
    expected,
    has_ended,
    has_news,
    inward,
    news_of,
    outward,
    prefill,
    rest,
    tokens_of,
)
from tests.replicas.memory.stores import Engines, shared_memory_store


@pytest.fixture
def pools():
    made = Pools()
    yield made
    made.close()


@pytest.mark.parametrize("prompt_tokens", [1, 3, 4, 25, 26, 27, 28, 70])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_output_through_two_engines_is_that_of_one(pools, prompt_tokens, async_scheduling):
    one = ask("a", prompt(prompt_tokens), seed=5)
    first_engine = pools.start(async_scheduling=async_scheduling)
    second_engine = pools.start(async_scheduling=async_scheduling)
    computed = prefill(first_engine, one)
    assert news_of(computed).outcome == "published"
    assert news_of(computed).num_tokens == prompt_tokens
    first = tokens_of(computed)
    assert first == expected(one)[:1]
    generated = decode(second_engine, one, first)
    assert news_of(generated).outcome == "adopted"
    assert news_of(generated).transport == "store"
    assert [*first, *tokens_of(generated)] == expected(one)
    assert second_engine.stats.computed_prompt_tokens_total == 0
    assert second_engine.stats.tiers.adopted_handoffs_total == 1


def test_blocks_that_host_memory_has_already_are_handed_over_without_a_copy(pools):
    one, same = ask("a", PROMPT[:24]), ask("b", PROMPT[:24])
    first_engine, second_engine = pools.start(), pools.start()
    prefill(first_engine, one)
    copied = first_engine.stats.tiers.copied_out_blocks_total
    first = tokens_of(prefill(first_engine, same))
    assert first_engine.stats.tiers.copied_out_blocks_total == copied
    generated = decode(second_engine, same, first)
    assert news_of(generated).outcome == "adopted"
    assert [*first, *tokens_of(generated)] == expected(same)


def test_the_first_token_comes_before_the_table_is_written(pools):
    computed = prefill(pools.start(), ask())
    kinds = [
        ("token" if entry.token_ids else "news" if entry.handoff else "") for entry in computed
    ]
    assert [kind for kind in kinds if kind] == ["token", "news"]


def test_blocks_leave_while_later_chunks_are_still_computed(pools):
    engine = pools.start(long_prefill_token_threshold=8)
    submit(engine, outward(ask("a", prompt(64))))
    deadline = time.monotonic() + 10.0
    while not pools.memory.num_bytes:
        assert time.monotonic() < deadline
        output = engine.step()
        assert output is None or not tokens_of(list(output.entries)), "nothing left before the end"
        time.sleep(0.002)


def test_the_device_is_free_once_the_blocks_are_copied_out(pools):
    engine = pools.start()
    prefill(engine, ask())
    assert engine.stats.num_running == 0
    assert engine.stats.num_held_slots == 0


def test_the_request_stays_until_its_gateway_has_had_enough(pools):
    engine = pools.start()
    prefill(engine, ask())
    assert engine.has_work
    engine.inbox.put(FinishChoice("a", 0, 0))
    ends = [entry.finish_reason for entry in entries_until(engine, has_ended)]
    assert ends == [FinishReason.HANDED_OFF]
    rest(engine)
    assert len(pools.tables) == 0


def test_a_hand_off_that_nobody_fetches_ends_by_itself(pools):
    engine = pools.start()
    prefill(engine, ask(), deadline_s=0.3)
    last = entries_until(engine, has_ended)
    assert news_of(last).outcome == "expired"
    assert last[-1].finish_reason is FinishReason.HANDED_OFF
    rest(engine)
    assert len(pools.tables) == 0


def test_a_table_serves_one_reader(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    decode(pools.start(), one, first)
    again = decode(pools.start(), one, first)
    assert news_of(again).outcome == "absent"
    assert [*first, *tokens_of(again)] == expected(one)


def test_another_generation_finds_nothing(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    generated = decode(pools.start(), one, first, generation=GENERATION + 1)
    assert news_of(generated).outcome == "absent"
    assert [*first, *tokens_of(generated)] == expected(one)


def rewritten(pools: Pools, **changes: object) -> None:
    """A table that somebody changed, under the key of the right one."""
    key = table_key("a", GENERATION)
    table = decode_table(pools.tables.get(key, timeout_s=1.0))
    pools.tables.put(key, encode_table(replace(table, **changes)), ttl_s=10.0)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"generation": GENERATION + 1}, "stale"),
        ({"request_id": "b"}, "stale"),
        ({"token_ids": (7, 8)}, "stale"),
        ({"token_hash": bytes(32)}, "stale"),
        ({"seed": 99}, "stale"),
        ({"position": 3}, "stale"),
        ({"num_tokens": 25}, "stale"),
        ({"names": ()}, "incompatible"),
        ({"num_tail_tokens": 0}, "incompatible"),
        ({"namespace": "another-model"}, "incompatible"),
    ],
)
def test_a_forged_table_is_refused_and_the_prompt_computed(pools, changes, outcome):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    rewritten(pools, **changes)
    target = pools.start()
    generated = decode(target, one, first)
    assert news_of(generated).outcome == outcome
    assert [*first, *tokens_of(generated)] == expected(one)
    assert target.stats.tiers.refused_handoffs_total == 1


def test_a_damaged_table_is_refused(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    key = table_key("a", GENERATION)
    value = bytearray(pools.tables.get(key, timeout_s=1.0))
    value[60] ^= 1
    pools.tables.put(key, bytes(value), ttl_s=10.0)
    generated = decode(pools.start(), one, first)
    assert news_of(generated).outcome == "corrupt"
    assert [*first, *tokens_of(generated)] == expected(one)


def test_the_tokens_of_another_request_are_not_adopted(pools):
    first = tokens_of(prefill(pools.start(), ask()))
    other = ask("a", prompt(26, seed=8))
    generated = decode(pools.start(), other, first)
    assert news_of(generated).outcome == "stale"


def test_a_damaged_block_is_computed_and_what_came_before_it_is_used(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    damaged = [key for key, _ in pools.memory.entries()][2]
    content = bytearray(pools.memory.find(damaged) or b"")
    content[-1] ^= 1
    pools.memory.replace(damaged, bytes(content))
    target = pools.start()
    generated = decode(target, one, first)
    assert news_of(generated).outcome == "corrupt"
    assert [*first, *tokens_of(generated)] == expected(one)
    assert 0 < target.stats.computed_prompt_tokens_total < len(PROMPT)


def test_a_lost_tail_is_computed(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    key = table_key("a", GENERATION)
    value = pools.tables.get(key, timeout_s=1.0)
    pools.tables.delete(key)
    pools.tables.put(key, value, ttl_s=10.0)
    target = pools.start()
    generated = decode(target, one, first)
    assert news_of(generated).outcome == "absent"
    assert [*first, *tokens_of(generated)] == expected(one)
    assert target.stats.computed_prompt_tokens_total == 2


def test_a_request_that_ends_with_its_first_token_is_not_handed_over(pools):
    engine = pools.start()
    submit(engine, outward(ask(max_tokens=1)))
    last = entries_until(engine, has_ended)
    assert last[-1].finish_reason is FinishReason.LENGTH
    rest(engine)
    assert len(pools.tables) == 0


def test_an_end_token_ends_the_request_where_it_was_sampled(pools):
    one = ask()
    engine = pools.start()
    submit(engine, outward(ask(stop_token_ids=(expected(one)[0],))))
    assert entries_until(engine, has_ended)[-1].finish_reason is FinishReason.STOP
    rest(engine)
    assert len(pools.tables) == 0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_cancelled_prefill_leaves_nothing(pools, num_steps, async_scheduling):
    engine = pools.start(async_scheduling=async_scheduling, long_prefill_token_threshold=8)
    submit(engine, outward(ask()))
    for _ in range(num_steps):
        engine.step()
        engine.check()
    engine.inbox.put(Cancel("a", 0))
    rest(engine)
    assert len(pools.tables) == 0
    assert engine.stats.num_held_slots == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_a_cancelled_adoption_leaves_nothing(pools, num_steps):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    engine = pools.start()
    submit(engine, inward(one, first))
    for _ in range(num_steps):
        engine.step()
        engine.check()
        time.sleep(0.003)
    engine.inbox.put(Cancel("a", 1))
    rest(engine)
    assert engine.stats.num_held_slots == 0


def test_a_prefill_engine_without_room_in_host_memory_says_so(pools):
    small = Pools(num_host_slots=2)
    engine = small.start()
    submit(engine, outward(ask()))
    last = entries_until(engine, has_ended)
    assert news_of(last).outcome == "no_room"
    assert tokens_of(last) == expected(ask())[:1]
    rest(engine)
    small.close()


def test_a_decode_engine_with_little_room_adopts_what_fits(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    key = table_key("a", GENERATION)
    small = Pools(num_host_slots=2)
    small.memory, small.tables = pools.memory, pools.tables
    engine = small.start()
    generated = decode(engine, one, first)
    assert news_of(generated).outcome == "no_room"
    assert [*first, *tokens_of(generated)] == expected(one)
    assert pools.tables.get(key, timeout_s=1.0) is None
    small.close()


def test_engines_without_tables_compute_for_themselves():
    made = Engines(lambda: shared_memory_store(Memory(max_bytes=1 << 20, clock=time.monotonic)))
    one = ask()
    engine = made.start()
    submit(engine, outward(one))
    last = entries_until(engine, has_ended)
    assert news_of(last).outcome == "unavailable"
    other = made.start()
    generated = decode(other, one, tokens_of(last))
    assert news_of(generated).outcome == "unavailable"
    assert [*tokens_of(last), *tokens_of(generated)] == expected(one)
    for started in (engine, other):
        started.close()
    made.close()


def test_tables_that_cannot_be_reached_cost_a_hand_off_and_no_request(pools, monkeypatch):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise StoreUnavailable("gone")

    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    monkeypatch.setattr(pools.tables, "get", fail)
    generated = decode(pools.start(), one, first)
    assert news_of(generated).outcome == "unavailable"
    assert [*first, *tokens_of(generated)] == expected(one)


def test_a_table_that_never_comes_is_waited_for_until_the_deadline(pools, monkeypatch):
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    get = pools.tables.get

    answers = threading.Event()

    def late(*args: object, **kwargs: object) -> bytes | None:
        answers.wait()
        return get(*args, **kwargs)

    monkeypatch.setattr(pools.tables, "get", late)
    engine = pools.start()
    try:
        generated = decode(engine, one, first, deadline_s=0.1)
    finally:
        answers.set()
    assert news_of(generated).outcome == "expired"
    assert [*first, *tokens_of(generated)] == expected(one)
    rest(engine)


def test_others_run_while_one_waits_for_its_hand_off(pools, monkeypatch):
    monkeypatch.setattr(pools.tables, "get", lambda *_args, **_kwargs: time.sleep(0.3))
    engine = pools.start()
    submit(engine, inward(ask(), [1]), request("quick", prompt(3, seed=1), max_tokens=4))
    ends = [entry.request_id for entry in entries_until(engine, has_ended) if has_ended(entry)]
    assert ends == ["quick"]


def test_prefixes_that_the_decode_engine_holds_are_not_fetched_again(pools):
    target = pools.start()
    submit(target, ask("warm", [*PROMPT[:16], 1, 2]))
    entries_until(target, has_ended)
    one = ask()
    first = tokens_of(prefill(pools.start(), one))
    generated = decode(target, one, first)
    assert news_of(generated).outcome == "adopted"
    # 26 tokens are 6 blocks and a tail; 4 blocks are here.
    block_bytes = 8 * 4
    assert news_of(generated).num_bytes == 3 * block_bytes
    assert [*first, *tokens_of(generated)] == expected(one)


def test_without_prefix_caching_hand_offs_go_on_all_the_same(pools):
    one = ask()
    first = tokens_of(prefill(pools.start(enable_prefix_caching=False), one))
    generated = decode(pools.start(enable_prefix_caching=False), one, first)
    assert news_of(generated).outcome == "adopted"
    assert [*first, *tokens_of(generated)] == expected(one)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_hand_offs_of_a_crowd_survive_preemption_on_both_sides(pools, async_scheduling):
    settings = {"num_blocks": 24, "preemption_mode": "swap", "async_scheduling": async_scheduling}
    first_engine, second_engine = pools.start(**settings), pools.start(**settings)
    crowd = [ask(f"r{i}", prompt(17 + i, seed=i), max_tokens=12, seed=i) for i in range(8)]
    submit(first_engine, *(outward(one) for one in crowd))
    computed: list[TokenEntry] = []
    while sum(has_news(entry) for entry in computed) < len(crowd):
        computed += entries_until(first_engine, has_news)
    firsts = {entry.request_id: list(entry.token_ids) for entry in computed if entry.token_ids}
    submit(second_engine, *(inward(one, firsts[one.request_id]) for one in crowd))
    generated: list[TokenEntry] = []
    while sum(has_ended(entry) for entry in generated) < len(crowd):
        generated += entries_until(second_engine, has_ended)
    for one in crowd:
        own = [entry for entry in generated if entry.request_id == one.request_id]
        assert [*firsts[one.request_id], *tokens_of(own)] == expected(one)
    rest(second_engine)
    for one in crowd:
        first_engine.inbox.put(FinishChoice(one.request_id, 0, 0))
    rest(first_engine)
    assert len(pools.tables) == 0
