"""Memory for packed weights in huge pages, where the system has them.

A step reads every weight once: with 4 KiB pages it would also walk tens of thousands of page-table
entries.
"""

import logging
import mmap
from dataclasses import dataclass, field

import torch

log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 << 20
_HUGE_BYTES = 2 << 20
_LINE_BYTES = 64


@dataclass(slots=True)
class HugeMemory:
    """Deals out parts of large chunks, which live as long as a tensor in them does.

    Pages that are never written to are never taken from the system.
    """

    _chunk: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    _used_bytes: int = 0

    def words(self, count: int) -> torch.Tensor:
        """[count] int32, zero, on a cache line of its own."""
        num_bytes = -(-4 * count // _LINE_BYTES) * _LINE_BYTES
        if self._used_bytes + num_bytes > len(self._chunk):
            self._chunk, self._used_bytes = _chunk(max(num_bytes, _CHUNK_BYTES)), 0
        start = self._used_bytes
        self._used_bytes += num_bytes
        return self._chunk[start : start + 4 * count].view(torch.int32)


def _chunk(num_bytes: int) -> torch.Tensor:
    pages = mmap.mmap(-1, num_bytes + _HUGE_BYTES)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError) as error:
        log.info("huge pages not used reason=%s", error)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_BYTES
    return whole[start : start + num_bytes]
