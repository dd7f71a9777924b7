"""A guess is as likely as such guesses have been, here and everywhere."""

import pytest

from replicas.speculation.hit_rates import HitRates, OwnHitRates


def own_rates(*, hits=0, misses=0, length=3, shared=None):
    rates = OwnHitRates(shared or HitRates())
    for is_hit in [True] * hits + [False] * misses:
        rates.note(length, is_hit)
    return rates


def test_nobody_knows_anything_at_first():
    assert own_rates().chances(3, 2) == [0.5, 0.25]


def test_a_request_that_repeats_itself_is_trusted_soon():
    assert own_rates(hits=20, length=20).chances(20, 1)[0] > 0.9


def test_a_request_that_does_not_is_not():
    assert own_rates(misses=20).chances(3, 1)[0] < 0.1


def test_what_others_saw_counts_for_a_newcomer():
    shared = HitRates()
    own_rates(misses=200, shared=shared)
    assert OwnHitRates(shared).chances(3, 1)[0] < 0.05


def test_its_own_tokens_count_more_than_what_others_saw():
    shared = HitRates()
    own_rates(misses=200, shared=shared)
    assert own_rates(hits=15, shared=shared).chances(3, 1)[0] > 0.6


def test_long_matches_are_another_matter_than_short_ones():
    rates = own_rates(misses=20, length=2)
    assert rates.chances(2, 1)[0] < 0.1
    assert rates.chances(20, 1)[0] == 0.5


def test_chances_multiply_and_follow_the_match_as_it_grows():
    shared = HitRates()
    rates = own_rates(misses=30, length=2, shared=shared)
    for _ in range(300):
        rates.note(3, True)
    first, second = rates.chances(2, 2)
    assert second == pytest.approx(first, rel=0.05)
