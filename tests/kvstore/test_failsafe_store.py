"""The failsafe wrapper: around any store, an outage is a miss, and waits for nobody twice."""

import random

import pytest

from kvstore.block_store import Fetched, PutReport
from kvstore.circuit_breaker import BreakerLimits
from kvstore.errors import StoreUnavailable
from kvstore.failsafe_store import FailsafeStore
from kvstore.memory_store import Memory, memory_store
from tests.kvstore.blocks import LAYOUT, all_same, chain, names, wanted

LIMITS = BreakerLimits(failures_to_open=2, first_pause_s=1.0, longest_pause_s=1.0)


class Moody:
    """A memory store that can be told to be away."""

    def __init__(self, clock):
        memory = Memory(max_bytes=1 << 20, clock=clock)
        self.layout = LAYOUT
        self._store = memory_store(memory, layout=LAYOUT, clock=clock)
        self.is_away = False
        self.num_calls = 0

    def __getattr__(self, name):
        inner = getattr(self._store, name)
        if name in ("stats", "close"):
            return inner

        def call(*args, **kwargs):
            self.num_calls += 1
            if not self.is_away:
                return inner(*args, **kwargs)
            if name == "put_many":
                return PutReport(("failed",) * len(args[0]), "timeout")
            raise StoreUnavailable("away", kind="timeout")

        return call


class Bench:
    def __init__(self):
        self.now = 0.0
        self.inner = Moody(self.clock)
        self.store = FailsafeStore(
            self.inner, limits=LIMITS, clock=self.clock, random_source=random.Random(1)
        )

    def clock(self):
        return self.now


@pytest.fixture
def bench():
    return Bench()


def test_every_call_has_a_harmless_answer_while_the_store_is_away(bench):
    blocks = chain(2)
    bench.inner.is_away = True
    for _ in range(2):
        assert bench.store.contains_prefix(names(blocks), lease="a") == 0
        assert bench.store.get_many(wanted(blocks)).blocks == ()
        assert bench.store.put_many(blocks).num_held == 0
        assert bench.store.pin(names(blocks), lease="a") == 0
        assert bench.store.renew("a") is False
        bench.store.release("a")
        assert bench.store.delete(names(blocks)) == 0
        assert list(bench.store.scan()) == []


def test_an_open_breaker_asks_the_store_no_more_and_counts(bench, caplog):
    bench.inner.is_away = True
    blocks = chain(2)
    for _ in range(10):
        bench.store.get_many(wanted(blocks))
    bench.store.put_many(blocks)
    assert bench.inner.num_calls == 2
    stats = bench.store.stats()
    assert stats.is_open
    assert (stats.short_circuits, stats.dropped_blocks) == (9, 2)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "store is away kind=timeout"
    ]


def test_it_comes_back_by_itself_and_says_so_once(bench, caplog):
    blocks = chain(2)
    bench.store.put_many(blocks)
    bench.inner.is_away = True
    for _ in range(5):
        bench.store.contains_prefix(names(blocks))
    bench.inner.is_away = False
    bench.now += 1.0
    assert all_same(bench.store.get_many(wanted(blocks)).blocks, blocks)
    assert not bench.store.stats().is_open
    assert [record.message for record in caplog.records][1:] == ["store is back"]


def test_misses_and_corrupt_values_are_no_outage(bench):
    for _ in range(10):
        assert bench.store.get_many(wanted(chain(1))).ended_by == "absent"
    assert not bench.store.stats().is_open


def test_a_prefix_that_a_timeout_cut_is_given_and_counts_as_a_failure(bench):
    part = Fetched(tuple(chain(1)), "timeout")
    bench.inner._store.get_many = lambda _, **options: part
    for _ in range(2):
        assert bench.store.get_many(wanted(chain(2))) == part
    assert bench.store.stats().is_open
