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
from replicas.kernels.reference.row_span import (
    BoolArray,
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
# From this many rows up two batched products beat the fused kernel, which reads bfloat16 slowly.
_PRODUCT_ROWS = 3
# Query tokens of one fused call: the keys behind its last token are left out, so short chunks
# save work, and long ones save calls.
_CHUNK_TOKENS = 128

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
    """A row with several query tokens: blocks [B] to gather, and the chunks that read them."""

    blocks: torch.Tensor
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
        firsts: np.ndarray[tuple[int], np.dtype[np.int64]],
        num_blocks: int,
        *,
        in_order: bool,
    ) -> DecodeGroup:
        num_kv_heads, size = self._shape.num_kv_heads, self._block_size
        blocks = np.zeros((len(spans), num_blocks), dtype=np.int64)
        for row, (span, first) in enumerate(zip(spans, firsts.tolist(), strict=True)):
            blocks[row, : len(span.blocks) - first] = span.blocks[first:]
        slots = (blocks[:, :, None] * size + np.arange(size)).reshape(len(spans), 1, -1)
        kv_rows = slots * num_kv_heads + np.arange(num_kv_heads)[:, None]
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
            keys = np.arange(shift, position + end - start)
            mask = self._mask(visible(queries, keys, self._shape.window))
            heads_per_kv = self._shape.num_heads // self._shape.num_kv_heads
            mask = mask.repeat_interleave(heads_per_kv, 0)
            chunks.append(PrefillChunk(start, end, len(keys), mask))
        return PrefillRow(torch.from_numpy(span.blocks[first:]), tuple(chunks))

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
    size, num_kv_heads = shape.head_dim, shape.num_kv_heads
    keys, values = scratch.pair((len(group.kv_rows), size), q.dtype)
    torch.index_select(cache.keys.view(-1, size), 0, group.kv_rows, out=keys)
    torch.index_select(cache.values.view(-1, size), 0, group.kv_rows, out=values)
    rows = q.reshape(group.num_rows * num_kv_heads, -1, size)
    if group.num_rows >= _PRODUCT_ROWS:
        stacked = (group.num_rows * num_kv_heads, group.num_keys, size)
        scores = torch.baddbmm(
            group.mask, rows, keys.view(stacked).transpose(1, 2), alpha=shape.scale
        )
        return torch.bmm(torch.softmax(scores, -1), values.view(stacked))
    stacked4 = (group.num_rows, num_kv_heads, group.num_keys, size)
    out: torch.Tensor = flash_attention(
        rows.view(group.num_rows, num_kv_heads, -1, size),
        keys.view(stacked4),
        values.view(stacked4),
        0.0,
        False,
        attn_mask=group.mask.view(group.num_rows, num_kv_heads, 1, -1)[:, :1],
        scale=shape.scale,
    )[0]
    return out


def _prefill(
    q: torch.Tensor,
    cache: LayerCache,
    shape: AttentionShape,
    row: PrefillRow,
    scratch: Scratch,
    out: torch.Tensor,
) -> None:
    num_kv_heads, size = shape.num_kv_heads, shape.head_dim
    block_elements = cache.keys[0].numel()
    keys, values = scratch.pair((len(row.blocks), block_elements), q.dtype)
    torch.index_select(cache.keys.view(-1, block_elements), 0, row.blocks, out=keys)
    torch.index_select(cache.values.view(-1, block_elements), 0, row.blocks, out=values)
    by_head = (-1, num_kv_heads, size)
    keys, values = keys.view(by_head).transpose(0, 1), values.view(by_head).transpose(0, 1)
    for chunk in row.chunks:
        grouped = (chunk.end - chunk.start, num_kv_heads, -1, size)
        queries = q[chunk.start : chunk.end].view(grouped).transpose(0, 1)
        part = flash_attention(
            queries.reshape(1, num_kv_heads, -1, size),
            keys[None, :, : chunk.num_keys],
            values[None, :, : chunk.num_keys],
            0.0,
            False,
            attn_mask=chunk.mask,
            scale=shape.scale,
        )[0]
        part = part.view(num_kv_heads, chunk.end - chunk.start, -1, size)
        out[chunk.start : chunk.end].view(grouped).copy_(part.transpose(0, 1))


def _rounded(num_blocks: int) -> int:
    """Up to one of eight steps per doubling: every new shape costs the library a compilation."""
    step = 1 << max(0, num_blocks.bit_length() - 4)
    return -(-num_blocks // step) * step
