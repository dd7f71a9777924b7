"""A runner without a model: tokens from arithmetic, time from a cost model."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvstore.block_store import BlockLayout
from replicas.batch import (
    UNRESOLVED,
    Batch,
    BlockMove,
    CopyBlock,
    CopyIn,
    CopyOut,
    Float32Array,
    Int64Array,
    Sampled,
)
from replicas.memory.host_buffer import HostBuffer
from replicas.runner import NearlyDone, Pause

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: fixed part, per token through the linear layers, per token attended to,
    per block moved.

    The step cost of lecture 11, 11.3: weights read once, KV read per request.
    """

    fixed_s: float = 0.0
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0
    per_move_s: float = 0.0

    def of(self, batch: Batch) -> float:
        """Seconds that this batch takes."""
        return (
            self.fixed_s
            + self.per_token_s * batch.num_tokens
            + self.per_context_token_s * float(batch.context_lens.sum())
            + self.move_s(batch)
        )

    def move_s(self, batch: Batch) -> float:
        """The part of it that moves take."""
        return self.per_move_s * len(batch.moves)


class SimulatedRunner:
    """Obeys the contract of a runner, and fails loudly if a batch does not.

    The "KV cache" stores, in each slot, a digest of the whole prefix up to that token, so a token
    sampled from it depends on every token before it, read through the block table: a scheduler or
    allocator that mixes up blocks yields other tokens. Moves carry the digests of a block about.

    cost: what to hand to `sleep` for each step. vocab_size: sampled ids are below it.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        vocab_size: int = 1000,
        cost: StepCost | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._cost = cost
        self._sleep = sleep
        self._digests = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._flat_digests = self._digests.reshape(-1)
        self._host: npt.NDArray[np.uint64] | None = None
        # 8 bytes a token, half of them called K and half V.
        self.layout = BlockLayout(
            fingerprint="simulated",
            dtype="float32",
            num_layers=1,
            block_size=block_size,
            num_kv_heads=1,
            head_dim=1,
        )
        self._last_tokens = [UNRESOLVED] * max_num_seqs

    def bind_host_buffer(self, buffer: HostBuffer) -> None:
        """Where digests are copied out to; its slots hold `layout.payload_bytes` each."""
        assert buffer.slot_bytes == self.layout.payload_bytes, buffer.slot_bytes
        self._host = buffer.slots.view(np.uint64)

    def run(self, batch: Batch, nearly_done: NearlyDone) -> Sampled:
        """Move digests, extend every row, sample."""
        return self.run_pausing(batch, nearly_done, Pause(lambda: None))

    def run_pausing(self, batch: Batch, nearly_done: NearlyDone, pause: Pause) -> Sampled:
        """As `run`; another batch may be run between any two rows."""
        move_s = 0.0
        if self._cost is not None:
            move_s = self._cost.move_s(batch)
            self._sleep(self._cost.of(batch))
        for move in batch.moves:
            self._move(move)
        digests: list[int] = []
        for row in range(batch.num_rows):
            pause.take()
            digests.extend(self._extend_row(batch, row))
        before = [digests[place] for place in batch.sampled_after()]
        nearly_done()
        tokens = []
        for digest, sample in zip(before, batch.samples, strict=True):
            mixed = _mix(digest ^ _mix(sample.sampling.seed + 31 * sample.choice))
            token = _mix(mixed + sample.position) % self._vocab_size
            self._last_tokens[int(batch.slots[sample.row])] = token
            tokens.append(token)
        token_ids = np.array(tokens, dtype=np.int64)
        return replace(self._with_logprobs(batch, before, token_ids), move_s=move_s)

    def close(self) -> None:
        """Let go of the host buffer."""
        self._host = None

    def _with_logprobs(self, batch: Batch, before: list[int], token_ids: Int64Array) -> Sampled:
        """A distribution over the vocabulary that depends on the prefix alone, for who asks."""
        counts = [sample.sampling.num_logprobs for sample in batch.samples]
        asked = [count for count in counts if count is not None]
        if not asked:
            return Sampled(token_ids)
        width = min(max(asked), self._vocab_size)
        logprobs = np.full(len(counts), np.nan, dtype=np.float32)
        top_ids = np.full((len(counts), width), UNRESOLVED, dtype=np.int64)
        tops = np.full((len(counts), width), np.nan, dtype=np.float32)
        for row, sample in enumerate(batch.samples):
            if sample.sampling.num_logprobs is not None:
                own = _distribution(before[row], self._vocab_size)
                top_ids[row] = np.argsort(-own, kind="stable")[:width]
                logprobs[row], tops[row] = own[token_ids[row]], own[top_ids[row]]
        if not width:
            return Sampled(token_ids, logprobs)
        return Sampled(token_ids, logprobs, top_ids, tops)

    def _move(self, move: BlockMove) -> None:
        match move:
            case CopyBlock(source, target):
                self._digests[target] = self._digests[source]
            case CopyOut(block, host_slot):
                self._host_slots()[host_slot] = self._digests[block]
            case CopyIn(host_slot, block):
                self._digests[block] = self._host_slots()[host_slot]

    def _host_slots(self) -> npt.NDArray[np.uint64]:
        assert self._host is not None, "a move to or from host memory without a host buffer"
        return self._host

    def _extend_row(self, batch: Batch, row: int) -> Iterator[int]:
        """Digests of the prefixes up to each token of the row."""
        start, stop = int(batch.query_start[row]), int(batch.query_start[row + 1])
        first = int(batch.positions[start])
        assert int(batch.context_lens[row]) == first + stop - start
        digest = self._digest_before(batch, row, first)
        for index in range(start, stop):
            token = int(batch.token_ids[index])
            if token == UNRESOLVED:
                token = self._last_tokens[int(batch.slots[row])]
                assert token != UNRESOLVED, "a slot without a sampled token"
            digest = _mix(digest ^ (token + 1))
            self._flat_digests[int(batch.slot_mapping[index])] = digest
            yield digest

    def _digest_before(self, batch: Batch, row: int, position: int) -> int:
        if position == 0:
            return 0
        block = int(batch.block_tables[row, (position - 1) // self._block_size])
        return int(self._digests[block, (position - 1) % self._block_size])


def _distribution(digest: int, vocab_size: int) -> Float32Array:
    """Log-probabilities [vocab_size] of logits in [0, 8)."""
    with np.errstate(over="ignore"):
        mixed = (np.arange(vocab_size, dtype=np.uint64) + np.uint64(digest)) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0x94D049BB133111EB)
    logits = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2.0**21)
    result: Float32Array = logits - np.log(np.exp(logits).sum())
    return result


def _mix(value: int) -> int:
    """A 64-bit mixing function (splitmix64's finaliser)."""
    value = (value + _MIX) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
