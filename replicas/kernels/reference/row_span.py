"""Where one request's tokens lie in a batch, and where its keys and values lie in the cache."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replicas.batch import Batch

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One row of a batch. start, end: its tokens in the flat batch. context: tokens it may see.

    first_position: position of its first token in this step. blocks: its block ids in order.
    """

    start: int
    end: int
    context: int
    blocks: IntArray

    @property
    def num_tokens(self) -> int:
        """Query tokens of this row."""
        return self.end - self.start

    @property
    def first_position(self) -> int:
        """Position in the request of the row's first query token."""
        return self.context - self.num_tokens


def row_spans(batch: Batch, block_size: int) -> Iterator[RowSpan]:
    """Every row of `batch` that has tokens, in order."""
    starts = batch.query_start.tolist()
    for row, context in enumerate(batch.context_lens.tolist()):
        if starts[row] < starts[row + 1]:
            num_blocks = -(-context // block_size)
            blocks = batch.block_tables[row, :num_blocks].astype(np.int64)
            yield RowSpan(starts[row], starts[row + 1], context, blocks)


def first_visible(position: int, window: int) -> int:
    """First position that a token at `position` sees; window 0 means all."""
    return max(0, position - window + 1) if window else 0


def visible(query: IntArray, key: IntArray, window: int) -> BoolArray:
    """Which key positions each query position sees: causal, and within the window.

    query and key broadcast against each other.
    """
    seen: BoolArray = key <= query
    if window:
        seen &= key > query - window
    return seen
