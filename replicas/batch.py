"""What one step will compute: a flat list of tokens, and for each request where its KV lies.

All tokens of a step are one flat [T] through every linear layer; attention alone sees requests,
through block tables (selective batching, lecture 11, 11.3; Orca).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replicas.request import SamplingParams

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

UNRESOLVED = -1


class SampleSpec(NamedTuple):
    """A token to sample: `row` in the batch, and all that its random number depends on.

    position: index in the whole request (prompt and output) of the token to be sampled; it follows
    the row's last token, or (speculation) one before that.
    forbid_end: end tokens may not be sampled (min_tokens not reached, or never: ignore_eos does
    not need it, since an ignored end token is an ordinary token).
    """

    row: int
    sampling: SamplingParams
    choice: int
    position: int
    forbid_end: bool = False


class CopyBlock(NamedTuple):
    """The whole content of one block into another: what a fork writes to (copy-on-write)."""

    source: int
    target: int


class CopyOut(NamedTuple):
    """A block's content into a slot of the host-memory tier."""

    block: int
    host_slot: int


class CopyIn(NamedTuple):
    """A slot of the host-memory tier into a block."""

    host_slot: int
    block: int


BlockMove = CopyBlock | CopyOut | CopyIn


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work, as arrays that a runner can take as they are. R rows, T tokens.

    token_ids: [T] int64. UNRESOLVED where the token is the one that the same slot sampled in the
        step before, which is still being computed when this batch is planned.
    positions: [T] int64, position of each token in its request.
    slot_mapping: [T] int64, block_id * block_size + offset: where its K and V go.
    query_start: [R + 1] int32, row r owns tokens query_start[r]:query_start[r + 1].
    context_lens: [R] int32, tokens of row r whose K and V are present after this step's writes.
    block_tables: [R, B] int32, row r uses its first ceil(context_lens[r] / block_size) entries.
    slots: [R] int32, a number below max_num_seqs that a request keeps while it runs.
    samples: tokens to sample, in the order of rows and of positions within a row. A row that has
        several carries guesses, and no UNRESOLVED token of a later batch stands for its last one.
    moves: block contents to move before anything of this step is computed, in this order. A batch
        may consist of them alone (R = T = 0).
    """

    step: int
    token_ids: Int64Array
    positions: Int64Array
    slot_mapping: Int64Array
    query_start: Int32Array
    context_lens: Int32Array
    block_tables: Int32Array
    slots: Int32Array
    samples: tuple[SampleSpec, ...]
    moves: tuple[BlockMove, ...] = ()

    @property
    def num_rows(self) -> int:
        """Requests in this step."""
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        """Tokens in this step, over all rows."""
        return len(self.token_ids)

    def sampled_after(self) -> Int64Array:
        """[S] int64: where in the flat batch the token before each sampled one lies, ascending."""
        rows = np.fromiter((sample.row for sample in self.samples), dtype=np.int64)
        positions = np.fromiter((sample.position for sample in self.samples), dtype=np.int64)
        places: Int64Array = self.query_start[rows + 1] - self.context_lens[rows] + positions - 1
        return places


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of a batch, S samples in the order of Batch.samples.

    token_ids: [S]. logprobs: [S], of the sampled tokens; top_ids, top_logprobs: [S, K], the K most
    likely tokens of each row, likeliest first, K being the largest num_logprobs in the batch. None
    if nobody asked. They are of the model's own distribution, before temperature, filters and
    forbidden tokens. A row that did not ask holds NaN and UNRESOLVED; one that asked for less than
    K reads only its own first columns.
    move_s: seconds that the batch's moves took.
    """

    token_ids: Int64Array
    logprobs: Float32Array | None = None
    top_ids: Int64Array | None = None
    top_logprobs: Float32Array | None = None
    move_s: float = 0.0
