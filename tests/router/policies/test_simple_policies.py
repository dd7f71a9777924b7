"""The policies that look at loads or at nothing: where requests go, and how evenly."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from router.policies.least_loaded import LeastLoaded
from router.policies.power_of_two import PowerOfTwo
from router.policies.random_choice import RandomChoice
from router.policies.round_robin import RoundRobin
from router.routing_policy import RoutingPolicy
from tests.router.policies.candidates import a_request, candidates_of


def names(policy: RoutingPolicy, count: int = 300, **loads: int) -> Counter[str]:
    candidates = candidates_of(**loads)
    choices = [policy.choose(a_request(), candidates, {}) for _ in range(count)]
    return Counter(choice.candidate.status.replica_id for choice in choices)


def test_round_robin_takes_turns():
    assert names(RoundRobin(), a=0, b=900, c=0) == {"a": 100, "b": 100, "c": 100}


def test_random_takes_each_about_as_often():
    assert min(names(RandomChoice(random.Random(1)), a=0, b=900, c=0).values()) > 70


def test_least_loaded_takes_the_lightest_only():
    assert names(LeastLoaded(random.Random(1)), a=5, b=4, c=6) == {"b": 300}


def test_least_loaded_leaves_equals_to_chance():
    taken = names(LeastLoaded(random.Random(1)), a=4, b=4, c=6)
    assert set(taken) == {"a", "b"}
    assert min(taken.values()) > 100


def test_a_difference_smaller_than_what_others_send_is_none():
    a, b, c = candidates_of(a=100, b=150, c=500)
    candidates = [replace(one, unseen_tokens=80.0) for one in (a, b, c)]
    policy = LeastLoaded(random.Random(1))
    taken = {
        policy.choose(a_request(), candidates, {}).candidate.status.replica_id for _ in range(50)
    }
    assert taken == {"a", "b"}


def test_power_of_two_never_takes_the_fullest_and_does_not_always_take_the_lightest():
    taken = names(PowerOfTwo(random.Random(1)), a=0, b=10, c=20)
    assert set(taken) == {"a", "b"}
    assert taken["a"] > taken["b"] > 50


def test_power_of_two_of_one_is_that_one():
    assert names(PowerOfTwo(random.Random(1)), a=7) == {"a": 300}


@pytest.mark.parametrize("policy", [LeastLoaded, PowerOfTwo, RandomChoice])
def test_the_same_seed_makes_the_same_choices(policy: type[LeastLoaded]):
    candidates = candidates_of(a=1, b=1, c=1, d=1)

    def run() -> list[str]:
        chooser = policy(random.Random(7))
        return [
            chooser.choose(a_request(), candidates, {}).candidate.status.replica_id
            for _ in range(20)
        ]

    assert run() == run()
