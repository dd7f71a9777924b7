"""Carries the blocks of a hand-off through the block store: slow beside others, and always there.

Full blocks are ordinary blocks of the store, pinned by a lease of the hand-off's own, so that they
stay until they are read and serve others afterwards. The tail lies beside the table.
"""

import logging
from collections.abc import Sequence

from kvstore.block_codec import decode, encode
from kvstore.block_hash import BlockHash
from kvstore.block_store import BlockStore, StoredBlock, WantedBlock
from kvstore.block_transport import Delivery, Source, TransportName
from kvstore.errors import CorruptBlock, StoreUnavailable
from kvstore.handoff_tables import HandoffTables

log = logging.getLogger(__name__)


class StoreTransport:
    """See BlockTransport. store: one that never raises StoreUnavailable; closed by its owner."""

    name: TransportName = "store"
    address = "store"

    def __init__(self, store: BlockStore, tables: HandoffTables) -> None:
        self._store = store
        self._tables = tables

    def offer(self, key: BlockHash, blocks: Sequence[StoredBlock], *, ttl_s: float) -> bool:
        """See BlockTransport. ttl_s: of the tail."""
        full = [block for block in blocks if not block.is_private]
        if full:
            if not self._store.put_many(full).is_complete:
                return False
            names = [block.name for block in full]
            if self._store.pin(names, lease=_lease(key)) < len(names):
                return False
        return all(self._put_tail(key, block, ttl_s) for block in blocks if block.is_private)

    def withdraw(self, key: BlockHash) -> None:
        """See BlockTransport. The table's owner removes the tail with the table."""
        self._store.release(_lease(key))

    def fetch(
        self,
        source: Source,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
        *,
        timeout_s: float,
    ) -> Delivery:
        """See BlockTransport."""
        full = [one for one in wanted if len(one.token_ids) == self._store.layout.block_size]
        num_whole, num_bytes = 0, 0
        if full:
            fetched = self._store.get_many(full, timeout_s=timeout_s)
            for block, target in zip(fetched.blocks, targets, strict=False):
                num_bytes += _place(block, target)
            num_whole = len(fetched.blocks)
            if fetched.ended_by != "complete":
                return Delivery(num_whole, num_bytes, fetched.ended_by)
        if len(wanted) == len(full):
            return Delivery(num_whole, num_bytes, "complete")
        return self._fetch_tail(
            source, wanted[-1], targets[-1], Delivery(num_whole, num_bytes, "absent"), timeout_s
        )

    def close(self) -> None:
        """Store and tables belong to others."""

    def _put_tail(self, key: BlockHash, tail: StoredBlock, ttl_s: float) -> bool:
        try:
            self._tables.put_tail(key, encode(tail, layout=self._store.layout).parts, ttl_s=ttl_s)
        except StoreUnavailable as error:
            log.info("tail not stored kind=%s: %s", error.kind, error)
            return False
        return True

    def _fetch_tail(
        self,
        source: Source,
        wanted: WantedBlock,
        target: memoryview,
        so_far: Delivery,
        timeout_s: float,
    ) -> Delivery:
        try:
            value = self._tables.get_tail(source.key, timeout_s=timeout_s)
            if value is None:
                return so_far
            tail = decode(value, layout=self._store.layout, wanted=wanted)
        except StoreUnavailable as error:
            return Delivery(so_far.num_whole, so_far.num_bytes, error.kind)
        except CorruptBlock as error:
            log.warning("tail corrupt kind=%s: %s", error.kind, error)
            return Delivery(so_far.num_whole, so_far.num_bytes, "corrupt")
        num_bytes = so_far.num_bytes + _place(tail, target)
        return Delivery(so_far.num_whole + 1, num_bytes, "complete")


def _lease(key: BlockHash) -> str:
    return f"handoff-{key.hex()}"


def _place(block: StoredBlock, target: memoryview) -> int:
    keys, values = memoryview(block.keys).cast("B"), memoryview(block.values).cast("B")
    target[: len(keys)] = keys
    target[len(keys) :] = values
    return len(keys) + len(values)
