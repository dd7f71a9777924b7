"""The heartbeat: pins last while somebody holds them, and end with the holder."""

import threading
import time

import pytest

from kvstore.lease_heartbeat import LeaseHeartbeat
from kvstore.memory_store import Memory, memory_store
from tests.kvstore.blocks import LAYOUT, chain, names

TTL_S = 0.3


@pytest.fixture
def memory():
    return Memory(max_bytes=1 << 20, clock=time.monotonic)


@pytest.fixture
def store(memory):
    store = memory_store(memory, layout=LAYOUT, clock=time.monotonic, lease_ttl_s=TTL_S)
    store.put_many(chain(1))
    store.pin(names(chain(1)), lease="mine")
    return store


@pytest.fixture
def heartbeat(store):
    heartbeat = LeaseHeartbeat(store, interval_s=TTL_S / 6)
    yield heartbeat
    heartbeat.close()


def is_pinned(memory):
    return memory.is_pinned((LAYOUT.namespace, names(chain(1))[0]))


def test_a_lease_lasts_while_it_is_held(heartbeat, memory):
    heartbeat.hold("mine")
    time.sleep(3 * TTL_S)
    assert is_pinned(memory)


def test_a_lease_that_nobody_holds_ends(heartbeat, memory):
    time.sleep(1.2 * TTL_S)
    assert not is_pinned(memory)


def test_a_release_ends_it_at_once(heartbeat, memory, store):
    heartbeat.hold("mine")
    heartbeat.release("mine")
    assert not is_pinned(memory)
    assert store.stats().num_leases == 0


def test_a_lease_that_is_gone_from_the_store_is_no_error(heartbeat, caplog):
    caplog.set_level("INFO")
    heartbeat.hold("unknown")
    time.sleep(TTL_S / 2)
    assert "lease could not be renewed lease=unknown" in caplog.text


def test_closing_ends_the_thread_and_then_the_lease(heartbeat, memory):
    heartbeat.hold("mine")
    heartbeat.close()
    assert not any(thread.name == "store-heartbeat" for thread in threading.enumerate())
    time.sleep(1.2 * TTL_S)
    assert not is_pinned(memory)
