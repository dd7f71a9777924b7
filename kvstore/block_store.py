"""What a store of KV blocks promises, so that engines do not know which one they use.

A store is a cache: whatever it loses is computed again. It may forget a block at any moment, may
refuse one, may be gone; it may never give out K and V that belong to other tokens, another model
or another layout (DESIGN 5; lecture 10, 10.5).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvstore.block_hash import BlockHash
from kvstore.errors import FailureKind
from kvstore.store_stats import StoreStats

LAYOUT_VERSION = 1

Buffer = bytes | bytearray | memoryview
KvDtype = Literal["bfloat16", "float16", "float32", "int8", "fp8_e4m3"]
ITEM_BYTES: dict[KvDtype, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "int8": 1,
    "fp8_e4m3": 1,
}


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How the K and V of one block lie in memory; equal layouts can read each other's bytes.

    K is [num_layers, block_size, num_kv_heads, head_dim] of `dtype`, C order, and so is V;
    num_kv_heads counts the heads of this tensor-parallel rank. scale_bytes: what follows K, and
    then V, when the cache itself is quantised and its scales travel with it. version: raised when
    the order of the bytes changes. fingerprint: of the model (equal ones mean equal K and V).
    """

    fingerprint: str
    dtype: KvDtype
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    tp_rank: int = 0
    tp_size: int = 1
    scale_bytes: int = 0
    version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9A-Za-z_-]{1,128}", self.fingerprint):
            raise ValueError(
                f"fingerprint={self.fingerprint!r}: expected 1 to 128 letters, digits, _ or -"
            )
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(ITEM_BYTES)}")
        for name in ("num_layers", "block_size", "num_kv_heads", "head_dim", "tp_size", "version"):
            if not 1 <= getattr(self, name) < 1 << 16:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 to 65535")
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"tp_rank={self.tp_rank}: expected 0 to {self.tp_size - 1}")
        if not 0 <= self.scale_bytes < 1 << 32:
            raise ValueError(f"scale_bytes={self.scale_bytes}: expected 0 to 4294967295")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[num_layers, block_size, num_kv_heads, head_dim] of K, and of V."""
        return (self.num_layers, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def half_bytes(self) -> int:
        """Bytes of K alone, which are as many as those of V."""
        layers, block_size, heads, head_dim = self.shape
        items = layers * block_size * heads * head_dim
        return items * ITEM_BYTES[self.dtype] + self.scale_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of K and V of one block."""
        return 2 * self.half_bytes

    @property
    def namespace(self) -> str:
        """The part of a key that only equal layouts share, the model's fingerprint first."""
        layers, block_size, heads, head_dim = self.shape
        scales = f"+{self.scale_bytes}" if self.scale_bytes else ""
        return (
            f"{self.fingerprint}.{self.dtype}{scales}.l{layers}b{block_size}h{heads}d{head_dim}"
            f".v{self.version}.tp{self.tp_rank}of{self.tp_size}"
        )


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block outside an engine.

    name: the block hash. parent: name of the block before it. token_ids: the block's own tokens;
    their number is the layout's block size, unless is_private. keys, values: the bytes of K and V,
    of half_bytes each; a store reads them until its `put_many` returns, and those that it gives out
    may be views of one buffer that lives as long as they do. is_private: the name is not the hash
    of its tokens but made up by its one owner, as a part-filled tail's is.
    """

    name: BlockHash
    parent: BlockHash
    token_ids: tuple[int, ...]
    keys: Buffer
    values: Buffer
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class WantedBlock:
    """A block by name, with the tokens that it must turn out to hold (survey, complaint 17)."""

    name: BlockHash
    token_ids: tuple[int, ...]


FetchEnd = Literal["complete", "absent", "corrupt"] | FailureKind


@dataclass(frozen=True, slots=True)
class Fetched:
    """The longest whole prefix of what was asked for, each block verified.

    ended_by: complete, or why the block after the last one is not here.
    """

    blocks: tuple[StoredBlock, ...]
    ended_by: FetchEnd


PutOutcome = Literal["stored", "present", "dropped", "full", "failed"]


@dataclass(frozen=True, slots=True)
class PutReport:
    """What became of each block, in the order in which they were given.

    stored: acknowledged whole. present: was there already. dropped: the store is behind, or there
    was no time left. full: no memory that may be had. failed: no acknowledgement came.
    failure: of what kind, if any failed.
    """

    outcomes: tuple[PutOutcome, ...]
    failure: FailureKind | None = None

    @property
    def num_held(self) -> int:
        """Blocks that the store acknowledged, now or before."""
        return sum(outcome in ("stored", "present") for outcome in self.outcomes)

    @property
    def is_complete(self) -> bool:
        """Whether every block is held: only then may a block table name them."""
        return self.num_held == len(self.outcomes)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What `scan` says of a value without reading it."""

    name: BlockHash
    num_bytes: int


class BlockStore(Protocol):
    """Blocks of one layout, by name. Every method may be called from any thread, and blocks.

    Except where a method says otherwise it raises StoreUnavailable when the store cannot answer in
    time; FailsafeStore turns that into a miss.
    """

    layout: BlockLayout

    def contains_prefix(self, names: Sequence[BlockHash], *, lease: str | None = None) -> int:
        """How many of the first names are here. With a lease, those are pinned before it answers.

        Without the lease nothing keeps a block from leaving between this and the next call.
        """
        ...

    def get_many(self, wanted: Sequence[WantedBlock], *, timeout_s: float | None = None) -> Fetched:
        """The longest prefix of whole blocks that hold the wanted tokens.

        timeout_s: longest wait, after which what has arrived is given; None takes the store's own.
        A caller that knows what a recompute costs need not wait longer than that.

        Raises StoreUnavailable if nothing at all could be read for that reason.
        """
        ...

    def put_many(self, blocks: Sequence[StoredBlock]) -> PutReport:
        """Write what is not here yet; a block can be found only once it is whole.

        Never raises StoreUnavailable: a cache that cannot be written is not worth an error.
        """
        ...

    def pin(self, names: Sequence[BlockHash], *, lease: str) -> int:
        """Keep the first names that are here from being trimmed; how many there are.

        A lease lasts lease_ttl_s from its last pin or renewal, so a holder that died pins nothing
        for long. What a server drops by its own maxmemory-policy goes in spite of any pin.
        """
        ...

    def renew(self, lease: str) -> bool:
        """The holder's heartbeat; False if the lease has ended or never was."""
        ...

    def release(self, lease: str) -> None:
        """Unpin everything under a lease; an unknown lease is a normal event."""
        ...

    def delete(self, names: Sequence[BlockHash]) -> int:
        """Remove blocks, pinned or not; how many there were."""
        ...

    def scan(self) -> Iterator[StoredEntry]:
        """Every block of this layout, in no order; one that comes or goes may be missed."""
        ...

    def stats(self) -> StoreStats:
        """Counts since the start, and the measured speeds. Never waits for the store."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Safe to call twice; the blocks stay."""
        ...
