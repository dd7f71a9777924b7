"""What a draft model is asked to compute: what it has not seen of some requests, and guesses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replicas.batch import Batch, SampleSpec
from replicas.block_table import num_blocks_for, slots_of
from replicas.request import SamplingParams

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class DraftRow(NamedTuple):
    """One request: its tokens from position `start` on, its blocks, and how many guesses to make.

    depth 0 computes the tokens alone. The blocks have room for one token more than it guesses.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    depth: int


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """R rows. first: the pass over the tokens that are there, from which the first guess comes.

    tables: [R, B], the whole block tables. depths: [R], guesses of each row; each after the first
    takes a pass of its own.
    """

    first: Batch
    tables: npt.NDArray[np.int32]
    depths: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[DraftRow], block_size: int) -> "DraftBatch":
        """The batch of these rows."""
        positions = [np.arange(row.start, row.start + len(row.token_ids)) for row in rows]
        tokens = [np.array(row.token_ids, dtype=np.int64) for row in rows]
        most_blocks = max(len(row.blocks) for row in rows)
        tables = np.zeros((len(rows), most_blocks), dtype=np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(row.blocks)] = row.blocks
        first = _batch(tokens, positions, tables, block_size)
        return cls(first, tables, tuple(row.depth for row in rows))

    def further(
        self, guess: int, last_tokens: npt.NDArray[np.int64], block_size: int
    ) -> tuple[Batch, npt.NDArray[np.int64]]:
        """The pass for guess number `guess` (from 1 on), and the rows [r] that are in it.

        last_tokens: [R] the guess before of each row.
        """
        rows = np.array([row for row, depth in enumerate(self.depths) if depth > guess])
        positions = [self.first.context_lens[row : row + 1] + (guess - 1) for row in rows]
        tokens = [last_tokens[row : row + 1] for row in rows]
        return _batch(tokens, positions, self.tables[rows], block_size), rows


def _batch(
    tokens: Sequence[npt.NDArray[np.int64]],
    positions: Sequence[npt.NDArray[np.integer]],
    tables: npt.NDArray[np.int32],
    block_size: int,
) -> Batch:
    counts = np.array([len(each) for each in tokens])
    query_start = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    flat = np.concatenate(positions).astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    context_lens = np.array([each[-1] + 1 for each in positions], dtype=np.int32)
    most_blocks = num_blocks_for(int(context_lens.max()), block_size)
    tables = np.ascontiguousarray(tables[:, :most_blocks])
    return Batch(
        step=0,
        token_ids=np.concatenate(tokens),
        positions=flat,
        slot_mapping=slots_of(tables, rows, flat, block_size),
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables,
        slots=np.arange(len(counts), dtype=np.int32),
        samples=tuple(
            SampleSpec(row, _GREEDY, 0, int(length)) for row, length in enumerate(context_lens)
        ),
    )
