"""Where a request's tokens lie: block ids in order, and the arithmetic of slots.

position            0 ......... 15 | 16 ........ 31 | 32 .. 39
block table         [ 7            ,   2            ,   9    ]
slot of position p  block_table[p // block_size] * block_size + p % block_size
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from replicas.batch import Int32Array, Int64Array


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` token positions."""
    return -(-num_tokens // block_size)


def slots_of(
    tables: Int32Array, rows: npt.NDArray[np.integer], positions: Int64Array, block_size: int
) -> Int64Array:
    """Slots [T] of tokens that stand at `positions` [T] of the requests in `rows` [T] of `tables`.

    tables: [R, B] block ids.
    """
    blocks: Int64Array = tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size


class BlockTables:
    """The block tables of all running requests as one matrix [max_num_seqs, max_blocks].

    A request keeps one row, its slot, while it runs; a batch takes a copy of the rows it needs,
    since a row may be given to another request while that batch is still being computed.
    """

    def __init__(self, *, max_num_seqs: int, max_blocks: int) -> None:
        self._tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_free_slots(self) -> int:
        """Requests that could still be taken in."""
        return len(self._free_slots)

    def take_slot(self) -> int:
        """A row of its own for a request."""
        return self._free_slots.pop()

    def give_back(self, slot: int) -> None:
        """The row is no longer used."""
        assert slot not in self._free_slots, f"slot {slot} is free already"
        self._free_slots.append(slot)

    def append(self, slot: int, blocks: Sequence[int], *, at: int) -> None:
        """Write `blocks` into a row, from its `at`-th block on."""
        self._tables[slot, at : at + len(blocks)] = blocks

    def rows(self, slots: Int32Array, num_blocks: int) -> Int32Array:
        """A copy [len(slots), num_blocks] of the first blocks of some rows."""
        return self._tables[slots, :num_blocks]
