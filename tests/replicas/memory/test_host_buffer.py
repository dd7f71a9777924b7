"""Slots of host memory that two processes see alike."""

import os
import subprocess
import sys

import pytest

from replicas.memory.host_buffer import HostBuffer

WRITE_IN_ANOTHER_PROCESS = """
import sys
from replicas.memory.host_buffer import HostBuffer
buffer = HostBuffer.attach(int(sys.argv[1]), num_slots=3, slot_bytes=8)
assert bytes(buffer.slot(0)) == b"from one"
buffer.slot(2)[:] = b"from two"
buffer.close()
"""


def test_slots_start_at_zero_and_do_not_overlap() -> None:
    buffer = HostBuffer.create(num_slots=3, slot_bytes=8)
    assert not buffer.slots.any()
    buffer.slot(1)[:] = bytes(range(1, 9))
    assert bytes(buffer.slot(0)) == bytes(buffer.slot(2)) == bytes(8)
    assert buffer.slots[1].tolist() == list(range(1, 9))
    buffer.close()


def test_another_process_reads_and_writes_the_same_bytes() -> None:
    buffer = HostBuffer.create(num_slots=3, slot_bytes=8)
    buffer.slot(0)[:] = b"from one"
    command = [sys.executable, "-c", WRITE_IN_ANOTHER_PROCESS, str(buffer.fd)]
    subprocess.run(command, check=True, pass_fds=[buffer.fd], timeout=60)
    assert bytes(buffer.slot(2)) == b"from two"
    buffer.close()


def test_memory_that_is_too_small_is_refused_with_both_numbers() -> None:
    small = HostBuffer.create(num_slots=2, slot_bytes=8)
    with pytest.raises(ValueError, match="3 slots of 8 bytes need 24 bytes.* has 16"):
        HostBuffer.attach(small.fd, num_slots=3, slot_bytes=8)
    small.close()


def test_closing_twice_closes_one_descriptor_once() -> None:
    buffer = HostBuffer.create(num_slots=1, slot_bytes=8)
    fd = buffer.fd
    buffer.close()
    reused = os.open(os.devnull, os.O_RDONLY)
    buffer.close()
    assert reused == fd
    os.close(reused)


def test_a_view_outlives_the_buffer() -> None:
    buffer = HostBuffer.create(num_slots=1, slot_bytes=4)
    view = buffer.slot(0)
    view[:] = b"kept"
    buffer.close()
    assert bytes(view) == b"kept"


def test_a_slot_beyond_the_last_is_a_fault() -> None:
    buffer = HostBuffer.create(num_slots=1, slot_bytes=4)
    with pytest.raises(AssertionError):
        buffer.slot(1)
    buffer.close()


def test_populating_changes_no_byte_and_survives_closing():
    buffer = HostBuffer.create(num_slots=3, slot_bytes=5000)
    buffer.slots[1] = 7
    buffer.populate()
    assert buffer.slots.sum() == 7 * 5000
    buffer.close()
    buffer.populate()
