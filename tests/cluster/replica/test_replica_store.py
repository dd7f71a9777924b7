"""A replica's store: none without a server, and counts that outlive the engine cores."""

import time

from cluster.replica.replica_store import ReplicaStore
from kvstore.block_store import BlockLayout, WantedBlock
from kvstore.config import StoreConfig
from kvstore.memory_store import Memory, memory_store

LAYOUT = BlockLayout("f00d", "float32", 1, 4, 1, 2)
NAMED = StoreConfig(redis_url="redis://127.0.0.1:1/0", store_fetch_timeout_s=0.5)


def in_memory(_config, *, layout):
    return memory_store(
        Memory(max_bytes=1000, clock=time.monotonic), layout=layout, clock=time.monotonic
    )


def test_without_a_server_there_is_nothing_to_open():
    store = ReplicaStore(StoreConfig())
    assert store.access is None
    assert store.stats() is None


def test_an_engine_is_told_how_long_a_request_may_wait():
    access = ReplicaStore(NAMED, open_store=in_memory).access
    assert access is not None
    assert access.fetch_timeout_s == 0.5


def test_counts_go_on_when_the_store_is_opened_for_the_next_core():
    store = ReplicaStore(NAMED, open_store=in_memory)
    assert store.access is not None
    for _core in range(2):
        opened = store.access.open(LAYOUT)
        opened.get_many([WantedBlock(bytes(32), (1, 2, 3, 4))])
    stats = store.stats()
    assert stats is not None
    assert stats.missed_blocks == 2
