"""The breaker: opens after failures in a row, tries now and then, closes when it works."""

import random

from kvstore.circuit_breaker import BreakerLimits, CircuitBreaker

LIMITS = BreakerLimits(failures_to_open=3, first_pause_s=1.0, longest_pause_s=8.0)


class Bench:
    def __init__(self, seed=0):
        self.now = 0.0
        self.breaker = CircuitBreaker(
            LIMITS, clock=lambda: self.now, random_source=random.Random(seed)
        )

    def open(self):
        for _ in range(3):
            assert self.breaker.allows()
            self.breaker.failed()


def test_it_opens_after_failures_in_a_row_and_says_so_once():
    breaker = Bench().breaker
    assert [breaker.failed() for _ in range(5)] == [False, False, True, False, False]
    assert breaker.is_open
    assert not breaker.allows()


def test_a_success_between_failures_keeps_it_closed():
    breaker = Bench().breaker
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        assert not breaker.succeeded()
    assert breaker.allows()


def test_one_call_at_a_time_may_try_after_the_pause():
    bench = Bench()
    bench.open()
    bench.now += 1.0
    assert [bench.breaker.allows() for _ in range(3)] == [True, False, False]


def test_a_try_that_works_closes_it_and_says_so():
    bench = Bench()
    bench.open()
    bench.now += 1.0
    assert bench.breaker.allows()
    assert bench.breaker.succeeded()
    assert not bench.breaker.is_open
    assert all(bench.breaker.allows() for _ in range(3))


def test_pauses_grow_to_the_longest():
    bench = Bench()
    bench.open()
    tries = []
    while bench.now < 120.0:
        bench.now += 0.01
        if bench.breaker.allows():
            tries.append(bench.now)
            bench.breaker.failed()
    gaps = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]
    assert gaps[0] < 2.1
    assert max(gaps) <= 8.02
    assert min(gaps[4:]) >= 4.0


def test_replicas_do_not_try_in_one_moment():
    def first_try(seed):
        bench = Bench(seed)
        bench.open()
        while not bench.breaker.allows():
            bench.now += 0.001
        return round(bench.now, 2)

    assert len({first_try(seed) for seed in range(20)}) > 10


def test_a_try_that_never_ends_does_not_keep_others_away_for_ever():
    bench = Bench()
    bench.open()
    bench.now += 1.0
    assert bench.breaker.allows()
    bench.now += 8.0
    assert bench.breaker.allows()
