"""Turns of a session: its blocks wait where its usual pause lets them last."""

import pytest

from tests.replicas.engine_harness import ManualClock, engine, prompt, request, run, submit


@pytest.fixture
def clock():
    return ManualClock()


def agent(clock, **overrides):
    values = {"num_blocks": 40, "num_host_slots": 64, "max_num_batched_tokens": 64, **overrides}
    return engine(clock=clock, **values)


def turn(target, name: str, ids: list[int], session: str | None = "s") -> None:
    submit(target, request(name, ids, max_tokens=2, session_id=session))
    run(target)


def others(target, clock, count: int) -> None:
    """Traffic that takes every block of the device."""
    for number in range(count):
        clock.advance(1.0)
        turn(target, f"o{clock.now}", prompt(60, seed=1000 + number), session=None)


def test_a_session_that_pauses_longer_than_the_device_keeps_is_swapped(clock):
    target = agent(clock, store_write_back="never")
    ids = prompt(24)
    turn(target, "a", ids)
    assert target.stats.tiers.sessions_kept_total == 1
    others(target, clock, 20)
    turn(target, "b", [*ids, 1, 2, 3])
    assert target.stats.tiers.sessions_swapped_total == 1
    others(target, clock, 20)
    before = target.stats.tiers.host_hit_tokens_total
    turn(target, "c", [*ids, 1, 2, 3, 4, 5])
    assert target.stats.tiers.host_hit_tokens_total - before >= 24
    target.close()


def test_a_session_that_comes_back_at_once_is_kept_on_the_device(clock):
    target = agent(clock)
    ids = prompt(24)
    for number in range(4):
        ids = [*ids, number]
        turn(target, f"t{number}", ids)
        clock.advance(0.01)
    assert target.stats.tiers.sessions_kept_total == 4
    assert target.stats.tiers.sessions_swapped_total == 0
    target.close()


def test_a_twenty_step_session_computes_only_what_is_new(clock):
    target = agent(clock, num_blocks=64, max_model_len=256)
    ids = prompt(20)
    for number in range(20):
        turn(target, f"t{number}", ids)
        clock.advance(0.01)
        ids = [*ids, *prompt(5, seed=number)]
    new_tokens = 20 + 19 * 5
    # Each turn computes again what did not fill a block, at most.
    assert target.stats.computed_prompt_tokens_total <= new_tokens + 20 * 4
    target.close()


def test_requests_without_a_session_have_no_fate(clock):
    target = agent(clock)
    turn(target, "a", prompt(24), session=None)
    tiers = target.stats.tiers
    fates = (
        tiers.sessions_kept_total,
        tiers.sessions_swapped_total,
        tiers.sessions_discarded_total,
    )
    assert fates == (0, 0, 0)
    target.close()


def test_a_session_whose_blocks_would_last_nowhere_gives_them_up_first(clock):
    target = agent(clock, num_host_slots=16, store_write_back="always")
    ids = prompt(24)
    turn(target, "a", ids)
    others(target, clock, 60)
    turn(target, "b", [*ids, 1, 2, 3])
    assert target.stats.tiers.sessions_discarded_total == 1
    num_cached = target.stats.num_cached_blocks
    assert num_cached < target.stats.num_free_blocks, "what was given up is empty, not cached"
    target.close()
