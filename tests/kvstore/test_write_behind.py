"""Writing behind an engine's back: never waits, drops what does not fit, and counts it."""

import threading

import pytest

from kvstore.memory_store import Memory, memory_store
from kvstore.write_behind import WriteBehind
from tests.kvstore.blocks import LAYOUT, all_same, chain, wanted


class SlowStore:
    """A memory store whose writes wait for the test."""

    def __init__(self):
        memory = Memory(max_bytes=1 << 22, clock=lambda: 0.0)
        self.layout = LAYOUT
        self.inner = memory_store(memory, layout=LAYOUT, clock=lambda: 0.0)
        self.may_write = threading.Event()

    def put_many(self, blocks):
        assert self.may_write.wait(10.0)
        return self.inner.put_many(blocks)


@pytest.fixture
def slow():
    return SlowStore()


@pytest.fixture
def writer(slow):
    writer = WriteBehind(slow, max_bytes=10 * LAYOUT.payload_bytes, batch_blocks=3)
    yield writer
    slow.may_write.set()
    writer.close()


def test_what_was_offered_is_written(slow, writer):
    slow.may_write.set()
    blocks = chain(8)
    assert writer.offer(blocks) == 8
    assert writer.flush(timeout_s=5.0)
    assert all_same(slow.inner.get_many(wanted(blocks)).blocks, blocks)


def test_what_finds_no_room_is_dropped_at_once_and_counted(slow, writer, caplog):
    blocks = chain(25)
    assert [writer.offer(blocks[:8]), writer.offer(blocks[8:])] == [8, 2]
    assert writer.num_dropped == 15
    assert [record.message.split(" max")[0] for record in caplog.records] == ["store is behind"]
    slow.may_write.set()
    assert writer.flush(timeout_s=5.0)
    assert all_same(slow.inner.get_many(wanted(blocks)).blocks, blocks[:10])
    assert writer.offer(blocks[10:15]) == 5


def test_a_flush_gives_up_in_time(writer):
    writer.offer(chain(2))
    assert not writer.flush(timeout_s=0.05)
    assert writer.num_waiting == 2


def test_closing_forgets_the_line_and_ends_the_thread(slow, writer):
    writer.offer(chain(9))
    slow.may_write.set()
    writer.close()
    assert writer.num_waiting == 0
    assert writer.offer(chain(1)) == 0
    assert not any(thread.name == "store-writer" for thread in threading.enumerate())
