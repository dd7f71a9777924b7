"""The memory store: bounded, least recently used first, and never what is pinned."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvstore.block_codec import largest_value_bytes
from kvstore.memory_store import Memory, memory_store
from tests.kvstore.blocks import LAYOUT, all_same, chain, names, wanted

VALUE_BYTES = largest_value_bytes(LAYOUT)
BLOCKS = chain(12)


@pytest.fixture
def memory():
    return Memory(max_bytes=4 * VALUE_BYTES, clock=lambda: 0.0)


@pytest.fixture
def store(memory):
    return memory_store(memory, layout=LAYOUT, clock=lambda: 0.0)


def held(store):
    return {entry.name for entry in store.scan()}


def test_the_least_recently_used_goes_first(store):
    blocks = BLOCKS[:6]
    store.put_many(blocks[:4])
    store.get_many(wanted(blocks[:1]))
    store.put_many(blocks[4:])
    assert held(store) == set(names([blocks[0], *blocks[3:]]))
    assert store.stats().trimmed_blocks == 2


def test_what_is_pinned_stays_and_what_finds_no_room_is_refused(store, memory):
    store.put_many(BLOCKS[:4])
    store.pin(names(BLOCKS[:4]), lease="mine")
    assert store.put_many(BLOCKS[4:5]).outcomes == ("full",)
    assert store.stats().full_blocks == 1
    store.release("mine")
    assert store.put_many(BLOCKS[4:5]).outcomes == ("stored",)
    memory.check()


def test_nothing_is_trimmed_for_a_value_that_cannot_fit_anyway(store):
    store.put_many(BLOCKS[:4])
    store.pin(names(BLOCKS[:4]), lease="mine")
    store.release("mine")
    tiny = memory_store(
        Memory(max_bytes=VALUE_BYTES - 1, clock=lambda: 0.0), layout=LAYOUT, clock=lambda: 0.0
    )
    assert tiny.put_many(BLOCKS[:1]).outcomes == ("full",)


class MemoryMachine(RuleBasedStateMachine):
    """Any order of calls keeps the bound, and never gives out another block's bytes."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.memory = Memory(max_bytes=5 * VALUE_BYTES, clock=lambda: self.now, ttl_s=50.0)
        self.store = memory_store(
            self.memory, layout=LAYOUT, clock=lambda: self.now, lease_ttl_s=20.0
        )

    some_blocks = st.lists(st.sampled_from(BLOCKS), max_size=6, unique_by=lambda b: b.name)
    leases = st.sampled_from(["a", "b", "c"])

    @rule(blocks=some_blocks)
    def put(self, blocks):
        report = self.store.put_many(blocks)
        assert set(report.outcomes) <= {"stored", "present", "full"}

    @rule(blocks=some_blocks)
    def get(self, blocks):
        fetched = self.store.get_many(wanted(blocks))
        assert all_same(fetched.blocks, blocks[: len(fetched.blocks)])

    @rule(blocks=some_blocks, lease=leases)
    def pin(self, blocks, lease):
        self.store.contains_prefix(names(blocks), lease=lease)

    @rule(lease=leases)
    def renew(self, lease):
        self.store.renew(lease)

    @rule(lease=leases)
    def release(self, lease):
        self.store.release(lease)

    @rule(blocks=some_blocks)
    def delete(self, blocks):
        self.store.delete(names(blocks))

    @rule(seconds=st.floats(0.0, 30.0))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def bounded(self):
        self.memory.check()
        assert self.store.stats().num_leases <= 3


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemoryMachine = MemoryMachine.TestCase
