"""Decisions come from what was measured, and what was not measured is tried."""

import pytest

from kvstore.break_even import PrefillCost
from replicas.memory.block_mover import StoreSpeeds
from replicas.memory.move_costs import FORGET_AFTER_S, BlockCost, MoveCosts
from tests.replicas.engine_harness import ManualClock

COST = BlockCost(PrefillCost(100.0, 0.0), block_size=4, block_bytes=400)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def costs(clock):
    """Prefill 10 tokens a second, copies 1,000 bytes a second: 10 tokens a second."""
    costs = MoveCosts(COST, clock=clock)
    costs.note_step([(0, 20)], seconds=2.0)
    costs.note_copies(5, seconds=2.0)
    return costs


def test_a_swap_goes_both_ways_and_a_recompute_once(costs):
    estimate = costs.swap(20, num_kept_tokens=0)
    assert estimate.move_s == pytest.approx(4.0)
    assert estimate.recompute_s == pytest.approx(2.0)
    assert estimate.choice == "recompute"


def test_a_swap_wins_once_copies_are_fast_enough(costs):
    costs.note_copies(1000, seconds=1.0)
    assert costs.swap(20, num_kept_tokens=0).choice == "move"


def test_tokens_in_blocks_of_others_cost_neither_side_anything(costs):
    estimate = costs.swap(20, num_kept_tokens=16)
    assert estimate.move_s == pytest.approx(0.8)
    assert estimate.recompute_s == pytest.approx(0.4)


def test_attention_makes_the_last_tokens_of_a_long_prefix_dearer(clock):
    costs = MoveCosts(BlockCost(PrefillCost(0.0, 1.0), 4, 400), clock=clock)
    costs.note_step([(0, 10)], seconds=1.0)
    assert costs.recompute_s(20, num_cached_tokens=10) == pytest.approx(3.0)


def test_a_short_prefill_pays_for_its_step_too(clock):
    costs = MoveCosts(COST, clock=clock)
    for num_tokens in (1, 2, 10, 50):
        costs.note_step([(0, num_tokens)], seconds=3.0 + 0.1 * num_tokens)
    assert costs.recompute_s(4, num_cached_tokens=0) == pytest.approx(3.4)
    assert costs.recompute_s(40, num_cached_tokens=0) == pytest.approx(7.0)


def test_before_the_first_step_nothing_is_known_of_prefill(clock):
    costs = MoveCosts(COST, clock=clock)
    assert not costs.knows_prefill
    costs.note_step([(5, 6), (9, 10)], seconds=1.0)
    assert costs.knows_prefill


def test_a_fetch_costs_its_round_trip_and_its_bytes(costs):
    costs.note_store(StoreSpeeds(None, 2000.0, 0.5), has_fetched=True)
    estimate = costs.fetch(20, num_cached_tokens=0)
    assert estimate.move_s == pytest.approx(0.5 + 1.0)
    assert estimate.choice == "move"


def test_a_store_that_was_slow_long_ago_is_tried_again(costs, clock):
    costs.note_store(StoreSpeeds(None, 1.0, 0.0), has_fetched=True)
    assert costs.fetch(20, num_cached_tokens=0).choice == "recompute"
    clock.advance(FORGET_AFTER_S + 1.0)
    assert costs.fetch(20, num_cached_tokens=0).choice == "move"
