"""Attention in few large calls: decode rows of similar context together, prefill rows in chunks.

A step with hundreds of requests must not make hundreds of small calls in every layer. What is the
same in every layer (which blocks, which masks) is worked out once a step in `plan`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, LayerCache
from replicas.kernels.reference.cache_access import read
from replicas.kernels.reference.row_span import (
    BoolArray,
    IntArray,
    RowSpan,
    first_visible,
    row_spans,
    visible,
)
from replicas.kernels.reference.scratch import Scratch

# Padded tokens (of keys) that a group may waste before a group of its own is cheaper.
_WASTE_TOKENS = 1024
# Gathered elements of one group, so that what is gathered is still in cache when it is used.
_GROUP_ELEMENTS = 1 << 20
# From this many rows up two batched products beat the fused kernel.
_PRODUCT_ROWS = 3
# Query tokens of one call: the keys behind its last token are left out and its scores stay in
# cache, so short chunks save time, and long ones save calls.
_CHUNK_TOKENS = 64
# Keys of a chunk are padded to a multiple of this: every new shape costs oneDNN a compilation.
_KEY_STEP = 64

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """N rows with one query token each, padded to L keys.

    tokens: [N] their places in the flat batch, or None if they are the whole batch in order.
    kv_rows: [N * G * L], which D-sized rows of the cache [num_blocks * block_size * G, D] to take.
    mask: [N * G, 1, L], 0 or -inf, added to the scores.
    """

    tokens: torch.Tensor | None
    kv_rows: torch.Tensor
    mask: torch.Tensor
    num_rows: int
    num_keys: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Query tokens start to end of the flat batch over the first num_keys gathered keys.

    mask: [C * H / G, num_keys], query rows in the order token, head.
    """

    start: int
    end: int
    num_keys: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row with several query tokens: kv_rows [G * L] to gather, and the chunks that read them."""

    kv_rows: torch.Tensor
    chunks: tuple[PrefillChunk, ...]


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    """slots: [T] where each token's K and V go; the rest is read by `attend`."""

    slots: torch.Tensor
    groups: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRow, ...]


def plan(batch: Batch, shape: AttentionShape, block_size: int, dtype: torch.dtype) -> GroupedPlan:
    """Which rows go together, what they read and what they may see."""
    spans = list(row_spans(batch, block_size))
    decodes = [span for span in spans if span.num_tokens == 1]
    planner = _Planner(shape, block_size, dtype)
    return GroupedPlan(
        slots=torch.from_numpy(batch.slot_mapping),
        groups=tuple(planner.decode_groups(decodes, is_whole_batch=len(decodes) == len(spans))),
        prefills=tuple(planner.prefill_row(span) for span in spans if span.num_tokens > 1),
    )


class _Planner:
    def __init__(self, shape: AttentionShape, block_size: int, dtype: torch.dtype) -> None:
        self._shape = shape
        self._block_size = block_size
        self._dtype = dtype

    def decode_groups(
        self, spans: Sequence[RowSpan], *, is_whole_batch: bool
    ) -> Iterator[DecodeGroup]:
        firsts = [self._first_block(span.context - 1) for span in spans]
        counts = [len(span.blocks) - first for span, first in zip(spans, firsts, strict=True)]
        order = sorted(range(len(spans)), key=lambda row: -counts[row])
        for group in self._cut([counts[row] for row in order]):
            rows = order[group]
            in_order = is_whole_batch and len(rows) == len(spans)
            rows = sorted(rows) if in_order else rows
            num_blocks = _rounded(max(counts[row] for row in rows))
            yield self._decode_group(
                [spans[row] for row in rows],
                np.array([firsts[row] for row in rows]),
                num_blocks,
                in_order=in_order,
            )

    def _cut(self, counts: Sequence[int]) -> Iterator[slice]:
        """Slices of rows, longest first, that waste little and whose gathered keys stay small."""
        block_elements = self._block_size * self._shape.num_kv_heads * self._shape.head_dim
        start = 0
        while start < len(counts):
            longest = counts[start]
            most = max(1, _GROUP_ELEMENTS // (longest * block_elements))
            wasted_blocks = itertools.accumulate(longest - count for count in counts[start:])
            fitting = sum(
                1
                for wasted in itertools.islice(wasted_blocks, most)
                if wasted * self._block_size <= _WASTE_TOKENS
            )
            yield slice(start, start + fitting)
            start += fitting

    def _decode_group(
        self,
        spans: Sequence[RowSpan],
        firsts: IntArray,
        num_blocks: int,
        *,
        in_order: bool,
    ) -> DecodeGroup:
        num_kv_heads, size = self._shape.num_kv_heads, self._block_size
        kv_rows = self._kv_rows(spans, firsts, num_blocks)
        last = np.array([span.context - 1 for span in spans])[:, None]
        keys = firsts[:, None] * size + np.arange(num_blocks * size)
        mask = self._mask(visible(last, keys, self._shape.window))
        return DecodeGroup(
            tokens=None if in_order else torch.tensor([span.start for span in spans]),
            kv_rows=torch.from_numpy(kv_rows.reshape(-1)),
            mask=mask.repeat_interleave(num_kv_heads, 0)[:, None],
            num_rows=len(spans),
            num_keys=num_blocks * size,
        )

    def prefill_row(self, span: RowSpan) -> PrefillRow:
        first = self._first_block(span.first_position)
        shift = first * self._block_size
        chunks = []
        for start in range(span.start, span.end, _CHUNK_TOKENS):
            end = min(start + _CHUNK_TOKENS, span.end)
            position = span.first_position + start - span.start
            queries = np.arange(position, position + end - start)[:, None]
            num_keys = _up_to(position + end - start - shift, _KEY_STEP)
            seen = visible(queries, shift + np.arange(num_keys), self._shape.window)
            heads_per_kv = self._shape.num_heads // self._shape.num_kv_heads
            mask = self._mask(seen).repeat_interleave(heads_per_kv, 0)
            chunks.append(PrefillChunk(start, end, num_keys, mask))
        num_blocks = -(-chunks[-1].num_keys // self._block_size)
        kv_rows = self._kv_rows([span], np.array([first]), num_blocks)
        kv_rows = kv_rows.reshape(self._shape.num_kv_heads, -1)[:, : chunks[-1].num_keys]
        return PrefillRow(torch.from_numpy(kv_rows.reshape(-1)), tuple(chunks))

    def _kv_rows(self, spans: Sequence[RowSpan], firsts: IntArray, num_blocks: int) -> IntArray:
        """[N, G, num_blocks * block_size]: rows of the cache from each one's first block on."""
        num_kv_heads, size = self._shape.num_kv_heads, self._block_size
        blocks = np.zeros((len(spans), num_blocks), dtype=np.int64)
        for row, (span, first) in enumerate(zip(spans, firsts.tolist(), strict=True)):
            blocks[row, : len(span.blocks) - first] = span.blocks[first:]
        slots = (blocks[:, :, None] * size + np.arange(size)).reshape(len(spans), 1, -1)
        rows: IntArray = slots * num_kv_heads + np.arange(num_kv_heads)[:, None]
        return rows

    def _first_block(self, position: int) -> int:
        return first_visible(position, self._shape.window) // self._block_size

    def _mask(self, seen: BoolArray) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self._dtype)
        return mask.masked_fill_(~torch.from_numpy(seen), float("-inf"))


def attend(
    q: torch.Tensor,
    cache: LayerCache,
    shape: AttentionShape,
    plan: GroupedPlan,
    scratch: Scratch,
) -> torch.Tensor:
    """q [T, H, D] to [T, H * D]."""
    width = shape.num_heads * shape.head_dim
    if len(plan.groups) == 1 and plan.groups[0].tokens is None:
        return _decode(q, cache, shape, plan.groups[0], scratch).view(-1, width)
    out = torch.empty_like(q)
    for group in plan.groups:
        if group.tokens is None:
            raise AssertionError("a group of the whole batch stands alone")
        part = _decode(q.index_select(0, group.tokens), cache, shape, group, scratch)
        out.index_copy_(0, group.tokens, part.view(-1, *out.shape[1:]))
    for row in plan.prefills:
        _prefill(q, cache, shape, row, scratch, out)
    return out.view(-1, width)


def _decode(
    q: torch.Tensor,
    cache: LayerCache,
    shape: AttentionShape,
    group: DecodeGroup,
    scratch: Scratch,
) -> torch.Tensor:
    """q [N, H, D]; query heads of one key-value head are rows of one product (GQA)."""
    keys, values = _gather(cache, group.kv_rows, group.num_keys, scratch, q.dtype)
    rows = q.reshape(group.num_rows * shape.num_kv_heads, -1, shape.head_dim)
    if group.num_rows >= _PRODUCT_ROWS:
        return _products(rows, keys, values, group.mask, shape.scale)
    by_row = (group.num_rows, shape.num_kv_heads, -1, shape.head_dim)
    return _fused(
        rows.view(by_row),
        keys.view(by_row),
        values.view(by_row),
        group.mask.view(group.num_rows, shape.num_kv_heads, 1, -1)[:, :1],
        shape.scale,
    )


def _prefill(
    q: torch.Tensor,
    cache: LayerCache,
    shape: AttentionShape,
    row: PrefillRow,
    scratch: Scratch,
    out: torch.Tensor,
) -> None:
    """One row of many query tokens, chunk by chunk, into its place in out [T, H, D]."""
    num_kv_heads, size = shape.num_kv_heads, shape.head_dim
    keys, values = _gather(cache, row.kv_rows, row.chunks[-1].num_keys, scratch, q.dtype)
    for chunk in row.chunks:
        grouped = (chunk.end - chunk.start, num_kv_heads, -1, size)
        queries = q[chunk.start : chunk.end].view(grouped).transpose(0, 1)
        queries = queries.reshape(num_kv_heads, -1, size)
        own_keys, own_values = keys[:, : chunk.num_keys], values[:, : chunk.num_keys]
        if q.dtype is torch.bfloat16:
            part = _products(queries, own_keys, own_values, chunk.mask, shape.scale)
        else:
            part = _fused(queries[None], own_keys[None], own_values[None], chunk.mask, shape.scale)
        part = part.view(num_kv_heads, chunk.end - chunk.start, -1, size)
        out[chunk.start : chunk.end].view(grouped).copy_(part.transpose(0, 1))


def _gather(
    cache: LayerCache,
    kv_rows: torch.Tensor,
    num_keys: int,
    scratch: Scratch,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [N * G, L, D], each head's one after another, as products want them."""
    size = cache.keys.shape[-1]
    keys, values = read(cache, kv_rows, (size,), scratch=scratch, dtype=dtype)
    return keys.view(-1, num_keys, size), values.view(-1, num_keys, size)


def _products(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [B, M, D] over keys and values [B, L, D] as two batched products, to [B, M, D].

    In bfloat16 faster than the fused kernel, as long as the scores stay in cache.
    """
    scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=scale)
    return torch.bmm(torch.softmax(scores, -1), values)


def _fused(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [N, G, M, D] over keys and values [N, G, L, D] in one kernel, to [N, G, M, D]."""
    out: torch.Tensor = flash_attention(q, keys, values, 0.0, False, attn_mask=mask, scale=scale)[0]
    return out


def _up_to(number: int, step: int) -> int:
    return -(-number // step) * step


def _rounded(num_blocks: int) -> int:
    """Up to one of eight steps per doubling, for the same reason as _KEY_STEP."""
    return _up_to(num_blocks, 1 << max(0, num_blocks.bit_length() - 4))
