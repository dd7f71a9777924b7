"""Attention whose bits depend on a request's own tokens alone, for deterministic mode.

Keys are cut into splits of fixed size, aligned to position 0 of the request. Each split is one
fused call of fixed shape, and the parts are merged by their log-sum-exp in the order of the
splits. So chunk borders, neighbours and the order of blocks change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, LayerCache
from replicas.kernels.reference.cache_access import read
from replicas.kernels.reference.grouped_attention import flash_attention
from replicas.kernels.reference.row_span import (
    BoolArray,
    IntArray,
    RowSpan,
    first_visible,
    row_spans,
    visible,
)
from replicas.kernels.reference.scratch import Scratch

SPLIT_TOKENS = 256
# Query tokens of one tile of a row that has many, and of a row that has few dozens.
TILE_TOKENS, SMALL_TILE_TOKENS = 64, 16
# Rows with fewer query tokens than this take small tiles.
_LARGE_ROW_TOKENS = 48
# Rows with at most this many query tokens are computed token by token.
_FEW_TOKENS = 4
# Items (query token, split) of one call: what they gather must stay in cache.
_CALL_ELEMENTS = 1 << 20
# Pieces of work (item, head) without which the fused kernel splits one among the threads.
_LEAST_PIECES = 2


@dataclass(frozen=True, slots=True)
class TokenCall:
    """N items, each one query token over one split of its keys.

    tokens: [N] places in the flat batch. blocks: [N * S / block_size]. mask: [N, 1, 1, S].
    """

    tokens: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenItems:
    """All query tokens that are computed one by one.

    tokens: [Q] places in the flat batch. parts: [P, Q], number of the item that holds the p-th
    split of each token; one more than the last item where a token has fewer.
    """

    calls: tuple[TokenCall, ...]
    tokens: torch.Tensor
    parts: torch.Tensor


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Tiles first to last of a row over one split; mask [tiles, 1, M, S], M query rows of a tile.

    dead: [tiles, 1, M], query rows that see nothing of this split, or None if there are none.
    """

    first: int
    last: int
    mask: torch.Tensor
    dead: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TiledRow:
    """A row with many query tokens: tokens [tiles * tile_tokens] (the last repeated as padding)."""

    start: int
    end: int
    tile_tokens: int
    tokens: torch.Tensor
    blocks: torch.Tensor
    splits: tuple[SplitPart, ...]


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """slots: [T] where each token's K and V go; the rest is read by `SplitAttention.attend`."""

    slots: torch.Tensor
    items: TokenItems | None
    rows: tuple[TiledRow, ...]


class SplitAttention:
    """Deterministic attention of one shape and dtype.

    block_size must divide the size of a split, which is SPLIT_TOKENS rounded up to whole blocks.
    """

    def __init__(self, shape: AttentionShape, block_size: int, dtype: torch.dtype) -> None:
        self._shape = shape
        self._block_size = block_size
        self._dtype = dtype
        self._split_blocks = -(-SPLIT_TOKENS // block_size)
        self._split = self._split_blocks * block_size
        self._heads_per_kv = shape.num_heads // shape.num_kv_heads
        self._token_rows, self._tile_tokens = self._prove()

    def plan(self, batch: Batch) -> SplitPlan:
        """Which tokens go together, what they read and what they may see."""
        spans = list(row_spans(batch, self._block_size))
        few = [span for span in spans if span.num_tokens <= _FEW_TOKENS]
        return SplitPlan(
            slots=torch.from_numpy(batch.slot_mapping),
            items=self._token_items(few) if few else None,
            rows=tuple(self._tiled_row(span) for span in spans if span.num_tokens > _FEW_TOKENS),
        )

    def attend(
        self, q: torch.Tensor, cache: LayerCache, plan: SplitPlan, scratch: Scratch
    ) -> torch.Tensor:
        """q [T, H, D] to [T, H * D]."""
        out = torch.empty_like(q)
        if plan.items is not None:
            self._attend_tokens(q, cache, plan.items, scratch, out)
        for row in plan.rows:
            self._attend_row(q, cache, row, scratch, out)
        return out.view(len(q), -1)

    def _token_items(self, spans: Sequence[RowSpan]) -> TokenItems:
        tokens: list[int] = []
        items: list[tuple[int, int, RowSpan, int]] = []
        numbers: list[list[int]] = []
        for span in spans:
            for offset in range(span.num_tokens):
                position = span.first_position + offset
                first = first_visible(position, self._shape.window) // self._split
                splits = range(first, position // self._split + 1)
                tokens.append(span.start + offset)
                numbers.append(list(range(len(items), len(items) + len(splits))))
                items.extend((span.start + offset, split, span, position) for split in splits)
        parts = np.full((max(map(len, numbers)), len(tokens)), len(items), dtype=np.int64)
        for column, own in enumerate(numbers):
            parts[: len(own), column] = own
        shape = self._shape
        most = max(
            _CALL_ELEMENTS // (self._split * shape.num_kv_heads * shape.head_dim), _LEAST_PIECES
        )
        calls = [self._token_call(items[at : at + most]) for at in range(0, len(items), most)]
        return TokenItems(tuple(calls), torch.tensor(tokens), torch.from_numpy(parts))

    def _token_call(self, items: Sequence[tuple[int, int, RowSpan, int]]) -> TokenCall:
        blocks = np.stack([self._blocks_of(span, split) for _, split, span, _ in items])
        positions = np.array([position for *_, position in items])[:, None]
        starts = np.array([split * self._split for _, split, _, _ in items])[:, None]
        seen = visible(positions, starts + np.arange(self._split), self._shape.window)
        return TokenCall(
            tokens=torch.tensor([token for token, *_ in items]),
            blocks=torch.from_numpy(blocks.reshape(-1)),
            mask=self._mask(seen)[:, None, None],
        )

    def _blocks_of(self, span: RowSpan, split: int) -> IntArray:
        blocks = np.zeros(self._split_blocks, dtype=np.int64)
        own = span.blocks[split * self._split_blocks : (split + 1) * self._split_blocks]
        blocks[: len(own)] = own
        return blocks

    def _tiled_row(self, span: RowSpan) -> TiledRow:
        window = self._shape.window
        tile = self._tile_tokens if span.num_tokens >= _LARGE_ROW_TOKENS else SMALL_TILE_TOKENS
        num_tiles = -(-span.num_tokens // tile)
        offsets = np.minimum(np.arange(num_tiles * tile), span.num_tokens - 1)
        positions = (span.first_position + offsets).reshape(num_tiles, tile)
        first_split = first_visible(span.first_position, window) // self._split
        splits = range(first_split, (span.context - 1) // self._split + 1)
        parts = []
        for split in splits:
            keys = split * self._split + np.arange(self._split)
            seen = visible(positions[:, :, None], keys, window)
            reached = np.flatnonzero(seen.any(axis=(1, 2)))
            first, last = int(reached[0]), int(reached[-1]) + 1
            parts.append(self._split_part(first, last, seen[first:last]))
        blocks = np.concatenate([self._blocks_of(span, split) for split in splits])
        return TiledRow(
            start=span.start,
            end=span.end,
            tile_tokens=tile,
            tokens=torch.from_numpy(span.start + offsets),
            blocks=torch.from_numpy(blocks),
            splits=tuple(parts),
        )

    def _split_part(self, first: int, last: int, seen: BoolArray) -> SplitPart:
        mask = self._mask(seen).repeat_interleave(self._heads_per_kv, 1)[:, None]
        dead = torch.from_numpy(~seen.any(axis=2)).repeat_interleave(self._heads_per_kv, 1)
        return SplitPart(first, last, mask, dead[:, None] if bool(dead.any()) else None)

    def _mask(self, seen: BoolArray) -> torch.Tensor:
        mask = torch.zeros(seen.shape, dtype=self._dtype)
        return mask.masked_fill_(~torch.from_numpy(seen), float("-inf"))

    def _attend_tokens(
        self,
        q: torch.Tensor,
        cache: LayerCache,
        items: TokenItems,
        scratch: Scratch,
        out: torch.Tensor,
    ) -> None:
        pairs = [self._call_tokens(q, cache, call, scratch) for call in items.calls]
        values = torch.cat([value for value, _ in pairs])
        weights = torch.cat([weight for _, weight in pairs])
        if len(items.parts) == 1:
            merged = values.index_select(0, items.parts[0])
        else:
            # One more item that weighs nothing, for tokens with fewer splits than others.
            values = torch.cat((values, values.new_zeros(1, *values.shape[1:])))
            weights = torch.cat((weights, weights.new_full((1, *weights.shape[1:]), -torch.inf)))
            merged = merge(
                [values.index_select(0, part) for part in items.parts],
                [weights.index_select(0, part) for part in items.parts],
            )
        out.index_copy_(0, items.tokens, merged.reshape(-1, *out.shape[1:]))

    def _call_tokens(
        self, q: torch.Tensor, cache: LayerCache, call: TokenCall, scratch: Scratch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Values [N, G, H / G, D] and log-sum-exp [N, G, H / G] of the items of one call."""
        shape, heads = self._shape, self._heads_per_kv
        keys, values = self._gather(cache, call.blocks, scratch, q.dtype)
        queries = q.index_select(0, call.tokens).view(-1, shape.num_kv_heads, heads, shape.head_dim)
        if heads < self._token_rows:
            queries = F.pad(queries, (0, 0, 0, self._token_rows - heads))
        value, weight = self._flash(queries, keys, values, call.mask)
        return value[:, :, :heads], weight[:, :, :heads]

    def _attend_row(
        self,
        q: torch.Tensor,
        cache: LayerCache,
        row: TiledRow,
        scratch: Scratch,
        out: torch.Tensor,
    ) -> None:
        shape = self._shape
        keys, values = self._gather(cache, row.blocks, scratch, q.dtype)
        by_tile = (-1, row.tile_tokens, shape.num_kv_heads, self._heads_per_kv, shape.head_dim)
        tiles = q.index_select(0, row.tokens).view(by_tile).transpose(1, 2)
        tiles = tiles.reshape(len(tiles), shape.num_kv_heads, -1, shape.head_dim)
        num_splits = len(row.splits)
        parts = tiles.new_zeros(num_splits, *tiles.shape)
        weights = torch.full((num_splits, *tiles.shape[:3]), -torch.inf)
        for index, split in enumerate(row.splits):
            wide = (split.last - split.first, -1, -1, -1)
            part, weight = self._flash(
                tiles[split.first : split.last],
                keys[index : index + 1].expand(wide),
                values[index : index + 1].expand(wide),
                split.mask,
            )
            parts[index, split.first : split.last] = part
            if split.dead is not None:
                weight = weight.masked_fill(split.dead, -torch.inf)
            weights[index, split.first : split.last] = weight
        merged = parts[0] if num_splits == 1 else merge(list(parts), list(weights))
        merged = merged.view(len(tiles), shape.num_kv_heads, row.tile_tokens, -1, shape.head_dim)
        flat = merged.transpose(1, 2).reshape(-1, *out.shape[1:])
        out[row.start : row.end] = flat[: row.end - row.start]

    def _gather(
        self, cache: LayerCache, blocks: torch.Tensor, scratch: Scratch, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [N, G, S, D] of whole splits."""
        shape = self._shape
        block_shape = cache.keys.shape[1:]
        keys, values = read(cache, blocks, block_shape, scratch=scratch, dtype=dtype)
        by_split = (-1, self._split, shape.num_kv_heads, shape.head_dim)
        return keys.view(by_split).transpose(1, 2), values.view(by_split).transpose(1, 2)

    def _flash(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One piece of work per item and head, each done by one thread in a fixed order."""
        num_items = len(q)
        if num_items * self._shape.num_kv_heads < _LEAST_PIECES:
            twice = (_LEAST_PIECES, -1, -1, -1)
            q, mask = q.expand(twice), mask.expand(twice)
            keys, values = keys.expand(twice), values.expand(twice)
        value, weight = flash_attention(
            q, keys, values, 0.0, False, attn_mask=mask, scale=self._shape.scale
        )
        return value[:num_items], weight[:num_items]

    def _prove(self) -> tuple[int, int]:
        """Query rows that a lone token is padded to, and tokens of a large tile.

        They are the fewest and the most that give each token the bits it has in a small tile. The
        library takes other paths for very few rows; calls of fixed shape run the same
        instructions whatever the numbers, so agreement on random ones shows the same order.
        """
        shape, heads = self._shape, self._heads_per_kv
        generator = torch.Generator().manual_seed(0)

        def noise(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, generator=generator).to(self._dtype)

        q = noise(4, shape.num_kv_heads, TILE_TOKENS * heads, shape.head_dim)
        cached = (4, self._split, shape.num_kv_heads, shape.head_dim)
        keys, values = noise(*cached).transpose(1, 2), noise(*cached).transpose(1, 2)
        ends = np.arange(4)[:, None] * 50 + np.arange(TILE_TOKENS)
        seen = visible(ends[:, :, None], np.arange(self._split), 0)
        mask = self._mask(seen).repeat_interleave(heads, 1)[:, None]

        def rows(first: int, count: int, padded_to: int) -> tuple[torch.Tensor, torch.Tensor]:
            own = slice(first * heads, (first + count) * heads)
            few, own_mask = q[:, :, own], mask[:, :, own]
            if padded_to > few.shape[2]:
                few = F.pad(few, (0, 0, 0, padded_to - few.shape[2]))
                own_mask = own_mask[:, :, :1]
            value, weight = self._flash(few, keys, values, own_mask)
            return value[:, :, : count * heads], weight[:, :, : count * heads]

        small = [rows(at, SMALL_TILE_TOKENS, 0) for at in range(0, TILE_TOKENS, SMALL_TILE_TOKENS)]
        truth = [torch.cat(parts, 2) for parts in zip(*small, strict=True)]

        def agrees(first: int, count: int, padded_to: int) -> bool:
            own = slice(first * heads, (first + count) * heads)
            return all(
                torch.equal(part, whole[:, :, own])
                for part, whole in zip(rows(first, count, padded_to), truth, strict=True)
            )

        candidates = sorted({max(heads, 4), max(heads, 8), max(heads, 16)})
        tokens = (0, 3, 15, 38)
        token_rows = next(
            (each for each in candidates if all(agrees(token, 1, each) for token in tokens)),
            SMALL_TILE_TOKENS * heads,
        )
        return token_rows, TILE_TOKENS if agrees(0, TILE_TOKENS, 0) else SMALL_TILE_TOKENS


def merge(values: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Parts of a softmax as one: values [..., D] each with its log-sum-exp [...], in that order.

    A part whose log-sum-exp is -inf counts for nothing; at least one must be finite.
    """
    largest = weights[0]
    for weight in weights[1:]:
        largest = torch.maximum(largest, weight)
    total = torch.zeros_like(largest)
    result = torch.zeros(values[0].shape, dtype=torch.float32)
    for value, weight in zip(values, weights, strict=True):
        share = torch.exp(weight - largest)
        result += value.float() * share[..., None]
        total += share
    return (result / total[..., None]).to(values[0].dtype)
