"""Hits draw a request, load pushes it away, and a miss goes to the lightest."""

import random

from hypothesis import given
from hypothesis import strategies as st

from router.policies.prefix_affinity import PrefixAffinity
from router.routing_policy import Choice
from tests.router.policies.candidates import a_request, candidates_of


def choice(hits: dict[str, int], *, load_weight: float = 1.0, **loads: int) -> Choice:
    policy = PrefixAffinity(random.Random(0), load_weight=load_weight)
    return policy.choose(a_request(128, num_blocks=8), candidates_of(**loads), hits)


def where(made: Choice) -> tuple[str, str]:
    return made.candidate.status.replica_id, made.reason


def test_the_longest_prefix_wins_among_equally_loaded_replicas():
    assert where(choice({"a": 2, "c": 5}, a=0, b=0, c=0)) == ("c", "prefix_hit")


def test_a_miss_goes_to_the_lightest():
    assert where(choice({}, a=9, b=3, c=9)) == ("b", "prefix_miss")


def test_hits_of_replicas_that_cannot_be_chosen_are_a_miss():
    assert where(choice({"gone": 8}, a=9, b=3)) == ("b", "prefix_miss")


def test_a_request_of_its_own_size_does_not_push_it_from_its_cache():
    assert where(choice({"a": 8}, a=128, b=0, c=0)) == ("a", "prefix_hit")


def test_an_overloaded_holder_is_left():
    assert where(choice({"a": 8}, a=5000, b=0, c=1)) == ("b", "prefix_overloaded")


def test_under_full_load_hits_still_decide_between_about_equals():
    assert where(choice({"a": 8}, a=11_000, b=10_000, c=10_500)) == ("a", "prefix_hit")


def test_a_short_hit_is_worth_less_load_than_a_long_one():
    assert where(choice({"a": 1}, a=128, b=0, c=0))[0] != "a"


def test_without_a_weight_hits_alone_decide():
    assert where(choice({"a": 1}, load_weight=0.0, a=10**9, b=0)) == ("a", "prefix_hit")


def test_the_lighter_of_two_equal_holders_is_taken():
    assert where(choice({"a": 8, "b": 8}, a=100, b=50, c=80)) == ("b", "prefix_hit")


@given(
    st.lists(st.integers(0, 10_000), min_size=2, max_size=8),
    st.lists(st.integers(0, 8), min_size=8, max_size=8),
)
def test_nobody_with_as_many_hits_and_less_load_is_passed_over(loads: list[int], hit: list[int]):
    names = [f"r{number}" for number in range(len(loads))]
    hits = {name: count for name, count in zip(names, hit, strict=False) if count}
    chosen = choice(hits, **dict(zip(names, loads, strict=True))).candidate.status
    for name, load in zip(names, loads, strict=True):
        better_hits = hits.get(name, 0) >= hits.get(chosen.replica_id, 0)
        assert not (better_hits and load < chosen.outstanding_tokens)
