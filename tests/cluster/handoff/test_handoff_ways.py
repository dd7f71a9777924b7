"""A replica of the pools opens the ways that the settings name, and does without one that fails."""

import socket
import time

import pytest

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.handoff_ways import HandoffWays
from kvstore.block_store import BlockLayout
from kvstore.handoff_tables import MemoryHandoffTables
from kvstore.memory_store import Memory, memory_store
from replicas.memory.host_buffer import HostBuffer

LAYOUT = BlockLayout("f00d", "float32", 1, 4, 1, 2)


def binding(port: int = 0) -> BlockStreamBinding:
    return BlockStreamBinding("127.0.0.1", "127.0.0.1", "a secret of the cluster", port)


def opened(ways: HandoffWays) -> dict[str, str]:
    """Names and addresses."""
    memory = Memory(max_bytes=1 << 16, clock=time.monotonic)
    store = memory_store(memory, layout=LAYOUT, clock=time.monotonic)
    tables = MemoryHandoffTables(clock=time.monotonic)
    buffer = HostBuffer.create(num_slots=2, slot_bytes=LAYOUT.payload_bytes)
    transports = ways.open(store, tables, buffer)
    found = {transport.name: transport.address for transport in transports}
    for transport in transports:
        transport.close()
    buffer.close()
    return found


@pytest.mark.parametrize("name", ["store", "shm", "grpc"])
def test_a_forced_way_is_the_only_one(name):
    assert list(opened(HandoffWays(name, binding()))) == [name]


def test_auto_opens_every_way_the_direct_ones_first():
    found = opened(HandoffWays("auto", binding()))
    assert list(found) == ["shm", "grpc", "store"]
    assert found["grpc"].startswith("127.0.0.1:")


def test_a_replica_outside_the_pools_opens_nothing_for_others():
    assert list(opened(HandoffWays())) == ["store"]


def test_a_port_that_is_taken_costs_the_direct_stream_and_not_the_replica():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ways = HandoffWays("auto", binding(taken.getsockname()[1]))
        assert list(opened(ways)) == ["shm", "store"]
