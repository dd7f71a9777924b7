"""The bytes of the host-memory tier, in memory that two processes can share.

An engine core copies blocks into slots and out of them; the process beside it, where the block
store's client lives, writes slots to the store and reads them back. Neither copies for the other.
"""

import logging
import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

# Not named by the mmap module of this Python.
_MADV_POPULATE_WRITE = 23
# A call holds the GIL: some milliseconds each.
_POPULATE_BYTES = 4 * 1024 * 1024

ByteArray = npt.NDArray[np.uint8]


class HostBuffer:
    """num_slots slots of slot_bytes each, zeroed at first; a slot holds one block.

    Pages are taken from the system when they are first written to. Who may use a slot when is not
    decided here (replicas.memory.host_tier).
    """

    def __init__(self, fd: int, *, num_slots: int, slot_bytes: int) -> None:
        assert num_slots > 0, num_slots
        assert slot_bytes > 0, slot_bytes
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._fd = fd
        self._pages: mmap.mmap | None = mmap.mmap(fd, num_slots * slot_bytes)
        flat: ByteArray = np.frombuffer(self._pages, dtype=np.uint8)
        self._slots: ByteArray | None = flat.reshape(num_slots, slot_bytes)

    @classmethod
    def create(cls, *, num_slots: int, slot_bytes: int) -> "HostBuffer":
        """New anonymous shared memory. OSError if the system has no room for it."""
        fd = new_shared_memory(num_slots * slot_bytes)
        try:
            return cls(fd, num_slots=num_slots, slot_bytes=slot_bytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, *, num_slots: int, slot_bytes: int) -> "HostBuffer":
        """Memory that another process made; `fd` belongs to the buffer from here on.

        ValueError if it is smaller than that.
        """
        needed_bytes, size_bytes = num_slots * slot_bytes, os.fstat(fd).st_size
        if size_bytes < needed_bytes:
            raise ValueError(
                f"host buffer: {num_slots} slots of {slot_bytes} bytes need {needed_bytes} bytes, "
                f"the memory handed over has {size_bytes}"
            )
        return cls(fd, num_slots=num_slots, slot_bytes=slot_bytes)

    @property
    def fd(self) -> int:
        """To hand to another process; not inherited unless it is passed on by name."""
        return self._fd

    @property
    def slots(self) -> ByteArray:
        """[num_slots, slot_bytes], writable."""
        assert self._slots is not None, "closed"
        return self._slots

    def slot(self, index: int) -> memoryview:
        """The bytes of one slot, writable."""
        assert 0 <= index < self.num_slots, (index, self.num_slots)
        return memoryview(self.slots[index])

    def populate(self) -> None:
        """Take every page from the system now, whatever is written meanwhile; blocks.

        The first 24 MB that are written to pages not taken yet cost 30 ms, later ones 4. Without
        Linux 5.14, or when the buffer is closed meanwhile, pages are taken as they are used.
        """
        num_bytes = self.num_slots * self.slot_bytes
        for start in range(0, num_bytes, _POPULATE_BYTES):
            pages = self._pages
            if pages is None:
                return
            try:
                pages.madvise(_MADV_POPULATE_WRITE, start, min(_POPULATE_BYTES, num_bytes - start))
            except (OSError, ValueError) as error:
                log.info("host buffer not populated: %s", error)
                return

    def close(self) -> None:
        """Let go of the memory; safe to call twice. Views of it that are left stay readable."""
        if self._pages is None:
            return
        pages, self._pages, self._slots = self._pages, None, None
        try:
            pages.close()
        except BufferError:
            # Someone still has a view; the memory goes with the last of them.
            del pages
        os.close(self._fd)


def new_shared_memory(num_bytes: int) -> int:
    """A descriptor of zeroed memory without a name, gone when the last process closes it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pagoda-host-tier")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, num_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd
