"""What every way of carrying a hand-off's blocks promises: the very bytes, or a reason and none."""

import dataclasses
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.block_stream_transport import BlockStreamTransport
from kvstore.block_store import StoredBlock
from kvstore.block_transport import Source
from kvstore.handoff_tables import MemoryHandoffTables
from kvstore.memory_store import Memory, memory_store
from kvstore.redis_block_store import open_redis_block_store, open_redis_handoff_tables
from kvstore.shm_transport import ShmTransport
from kvstore.store_transport import StoreTransport
from tests.kvstore.blocks import LAYOUT, block, chain, wanted
from tests.kvstore.short_timeouts import config_of

KEY = bytes(range(32))
NUM_SLOTS = 16
UNIX_SOCKETS = Path("/proc/net/unix")
SECRET = "a secret that all replicas know"


class HostMemory:
    """Slots of one replica, in memory that it can share."""

    def __init__(self) -> None:
        num_bytes = NUM_SLOTS * LAYOUT.payload_bytes
        self.fd = os.memfd_create("test")
        os.ftruncate(self.fd, num_bytes)
        self.pages = memoryview(mmap.mmap(self.fd, num_bytes))

    def slot(self, index: int) -> memoryview:
        size = LAYOUT.payload_bytes
        return self.pages[index * size : (index + 1) * size]

    def place(self, blocks: list[StoredBlock]) -> list[StoredBlock]:
        """The same blocks, with their bytes in slots."""
        placed = []
        for index, each in enumerate(blocks):
            slot = self.slot(index)
            half = LAYOUT.half_bytes
            slot[:half], slot[half:] = each.keys, each.values
            placed.append(dataclasses.replace(each, keys=slot[:half], values=slot[half:]))
        return placed


class Ends:
    """Two ends of a transport, each a replica of its own."""

    def __init__(self, kind: str, redis_url: str = "") -> None:
        self.kind = kind
        self.memory = Memory(max_bytes=1 << 20, clock=time.monotonic)
        self.tables = MemoryHandoffTables(clock=time.monotonic)
        self._redis_url = redis_url
        self._opened: list = []
        self.host = HostMemory()
        self.sender = self.open()
        self.reader = self.open()

    def open(self, **changes):
        made = getattr(self, f"_open_{self.kind}")(**changes)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def _open_store(self):
        return StoreTransport(
            memory_store(self.memory, layout=LAYOUT, clock=time.monotonic), self.tables
        )

    def _open_redis(self):
        config = config_of(self._redis_url)
        store = open_redis_block_store(config, layout=LAYOUT)
        tables = open_redis_handoff_tables(config, layout=LAYOUT)
        self._opened += [store, tables]
        return StoreTransport(store, tables)

    def _open_shm(self):
        return ShmTransport(LAYOUT, fd=self.host.fd, memory=self.host.pages)

    def _open_grpc(self, *, secret: str = SECRET):
        return BlockStreamTransport(LAYOUT, BlockStreamBinding("127.0.0.1", "127.0.0.1", secret))

    def offer(self, blocks: list[StoredBlock]) -> bool:
        return self.sender.offer(KEY, self.host.place(blocks), ttl_s=10.0)

    def fetch(self, blocks: list[StoredBlock], *, reader=None, address=None, key=KEY):
        """The delivery, and the bytes that came."""
        targets = [memoryview(bytearray(LAYOUT.payload_bytes)) for _ in blocks]
        source = Source(key, self.sender.address if address is None else address)
        delivery = (reader or self.reader).fetch(source, wanted(blocks), targets, timeout_s=5.0)
        return delivery, [bytes(target) for target in targets[: delivery.num_whole]]


@pytest.fixture(params=["store", "shm", "grpc", pytest.param("redis", marks=pytest.mark.redis)])
def ends(request):
    url = request.getfixturevalue("empty_valkey").url if request.param == "redis" else ""
    made = Ends(request.param, url)
    yield made
    made.close()


def bytes_of(blocks: list[StoredBlock]) -> list[bytes]:
    return [bytes(each.keys) + bytes(each.values) for each in blocks]


def tail() -> StoredBlock:
    """A part-filled block under a private name."""
    full = block(bytes(32), (1, 2, 3, 4))
    return dataclasses.replace(full, name=b"t" * 32, token_ids=(1, 2), is_private=True)


def test_what_was_offered_arrives_byte_for_byte(ends):
    blocks = [*chain(5), tail()]
    assert ends.offer(blocks)
    delivery, found = ends.fetch(blocks)
    assert delivery.ended_by == "complete"
    assert found == bytes_of(blocks)
    assert delivery.num_bytes == 6 * LAYOUT.payload_bytes


def test_a_tail_alone_arrives(ends):
    assert ends.offer([tail()])
    delivery, found = ends.fetch([tail()])
    assert delivery.ended_by == "complete"
    assert found == bytes_of([tail()])


def test_blocks_offered_one_after_another_are_found_together(ends):
    blocks = chain(4)
    placed = ends.host.place(blocks)
    for each in placed:
        assert ends.sender.offer(KEY, [each], ttl_s=10.0)
    assert ends.fetch(blocks)[1] == bytes_of(blocks)


def test_a_reader_gets_what_it_lacks_and_no_more(ends):
    blocks = chain(5)
    ends.offer(blocks)
    delivery, found = ends.fetch(blocks[3:])
    assert found == bytes_of(blocks[3:])
    assert delivery.num_bytes == 2 * LAYOUT.payload_bytes


def test_the_first_missing_block_ends_a_delivery(ends):
    blocks = chain(5)
    ends.offer([*blocks[:2], *blocks[3:]])
    delivery, found = ends.fetch(blocks)
    assert (delivery.num_whole, delivery.ended_by) == (2, "absent")
    assert found == bytes_of(blocks[:2])


def test_an_unknown_hand_off_brings_nothing(ends):
    delivery, _ = ends.fetch([tail()])
    assert (delivery.num_whole, delivery.ended_by) == (0, "absent")


def test_a_second_reader_finds_the_same(ends):
    blocks = chain(3)
    ends.offer(blocks)
    ends.fetch(blocks)
    assert ends.fetch(blocks, reader=ends.open())[1] == bytes_of(blocks)


def test_withdrawing_what_was_never_offered_is_a_normal_event(ends):
    ends.sender.withdraw(KEY)
    ends.sender.withdraw(KEY)


def test_closing_twice_is_a_normal_event(ends):
    ends.sender.close()
    ends.sender.close()


def test_blocks_of_other_tokens_are_not_taken(ends):
    blocks = chain(3)
    ends.offer(blocks)
    other = [dataclasses.replace(each, token_ids=(9, 9, 9, 9)) for each in blocks]
    delivery, _ = ends.fetch(other)
    assert (delivery.num_whole, delivery.ended_by) == (0, "corrupt")


def test_many_readers_at_once_each_get_the_bytes(ends):
    blocks = chain(8)
    ends.offer(blocks)
    found: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: found.append(ends.fetch(blocks)[1])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [bytes_of(blocks)] * 6


@pytest.fixture(params=["shm", "grpc"])
def direct(request):
    made = Ends(request.param)
    yield made
    made.close()


def test_withdrawn_blocks_are_found_no_more(direct):
    blocks = chain(3)
    direct.offer(blocks)
    direct.sender.withdraw(KEY)
    assert direct.fetch(blocks)[0].ended_by == "absent"


def test_blocks_are_found_under_their_own_hand_off_only(direct):
    blocks = chain(3)
    direct.offer(blocks)
    assert direct.fetch(blocks, key=bytes(32))[0].ended_by == "absent"


def test_a_slot_that_has_a_new_use_is_found_out_by_its_checksum(direct):
    blocks = chain(3)
    direct.offer(blocks)
    direct.host.slot(1)[7] ^= 1
    delivery, found = direct.fetch(blocks)
    assert (delivery.num_whole, delivery.ended_by) == (1, "corrupt")
    assert found == bytes_of(blocks[:1])


def test_an_end_that_is_gone_costs_the_reader_an_error_and_no_wait(direct):
    blocks = chain(3)
    direct.offer(blocks)
    direct.fetch(blocks)
    direct.sender.close()
    started = time.monotonic()
    delivery, _ = direct.fetch(blocks)
    assert (delivery.num_whole, delivery.ended_by) == (0, "connection")
    assert time.monotonic() - started < 4.0


def test_nobody_at_an_address_is_an_error_and_no_wait(direct):
    address = {"shm": "pagoda-blocks-" + "0" * 32, "grpc": "127.0.0.1:1"}[direct.kind]
    assert direct.fetch(chain(1), address=address)[0].ended_by == "connection"


def test_an_address_that_makes_no_sense_is_an_error(direct):
    assert direct.fetch(chain(1), address="")[0].num_whole == 0


def test_a_reader_without_the_secret_is_turned_away():
    ends = Ends("grpc")
    stranger = ends.open(secret="another secret")
    ends.offer(chain(1))
    assert ends.fetch(chain(1), reader=stranger)[0].ended_by == "refused"
    ends.close()


def test_shared_memory_is_handed_over_read_only():
    ends = Ends("shm")
    ends.offer(chain(2))
    ends.fetch(chain(2))
    (peer,) = ends.reader._peers.values()
    assert peer.memory.readonly
    ends.close()


def test_nothing_is_left_of_shared_memory_whose_owner_was_killed(tmp_path):
    code = """
import os, time
from kvstore.shm_transport import ShmTransport
from tests.kvstore.test_block_transports import LAYOUT, HostMemory
host = HostMemory()
print(ShmTransport(LAYOUT, fd=host.fd, memory=host.pages).address, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        address = owner.stdout.readline().strip()
        open_sockets = UNIX_SOCKETS.read_text()
        owner.kill()
        owner.wait()
    assert address in open_sockets
    assert address not in UNIX_SOCKETS.read_text()


def test_large_blocks_travel_in_pieces(monkeypatch):
    monkeypatch.setattr("cluster.handoff.block_stream_server.CHUNK_BYTES", 100)
    ends = Ends("grpc")
    blocks = [*chain(5), tail()]
    ends.offer(blocks)
    assert ends.fetch(blocks)[1] == bytes_of(blocks)
    ends.close()
