"""A block store over a shelf of values: here a value becomes a block that may be trusted.

Everything that DESIGN 5 asks of a hit is checked here, for every shelf alike: layout, name, tokens,
checksums. A value that is damaged is a miss, is counted, logged and removed; a value that belongs
to other tokens is a miss and stays.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from kvstore.block_codec import EncodedBlock, check_fits, decode, encode
from kvstore.block_compression import Compression
from kvstore.block_hash import BlockHash
from kvstore.block_store import (
    BlockLayout,
    Fetched,
    FetchEnd,
    PutReport,
    StoredBlock,
    StoredEntry,
    WantedBlock,
)
from kvstore.errors import CorruptBlock, StoreUnavailable
from kvstore.lease_table import LeaseTable
from kvstore.store_stats import Count, StoreCounters, StoreStats
from kvstore.value_shelf import Decoded, ShelfRead, ValueShelf

log = logging.getLogger(__name__)

_OUTCOME_COUNTS: dict[str, Count] = {
    "stored": "stored_blocks",
    "present": "present_blocks",
    "dropped": "dropped_blocks",
    "full": "full_blocks",
    "failed": "failed_blocks",
}


class CodedBlockStore:
    """Blocks of one layout on a shelf; see BlockStore for what each method promises.

    lease_ttl_s: how long a pin lasts without a heartbeat. compression: of K and V as they are
    written; whatever was written can be read.
    """

    def __init__(
        self,
        shelf: ValueShelf,
        *,
        layout: BlockLayout,
        clock: Callable[[], float],
        counters: StoreCounters | None = None,
        lease_ttl_s: float = 30.0,
        compression: Compression = "none",
    ) -> None:
        self.layout = layout
        self._shelf = shelf
        self._clock = clock
        self._counters = counters or StoreCounters(clock=clock)
        self._leases = LeaseTable(ttl_s=lease_ttl_s, clock=clock)
        self._compression: Compression = compression

    def contains_prefix(self, names: Sequence[BlockHash], *, lease: str | None = None) -> int:
        """See BlockStore. Blocks that are found are pinned first and then looked for again."""
        self._expire_leases()
        started_at = self._clock()
        num_present = self._counted(lambda: self._shelf.num_present(names))
        self._counters.round_trip.record(self._clock() - started_at)
        if lease is None or num_present == 0:
            return num_present
        return self.pin(names[:num_present], lease=lease)

    def get_many(self, wanted: Sequence[WantedBlock], *, timeout_s: float | None = None) -> Fetched:
        """See BlockStore."""
        if not wanted:
            return Fetched((), "complete")
        sizes = [0] * len(wanted)

        def read(index: int, value: memoryview) -> Decoded:
            sizes[index] = len(value)
            try:
                return decode(value, layout=self.layout, wanted=wanted[index])
            except CorruptBlock as error:
                return error

        started_at = self._clock()
        result = self._shelf.read([block.name for block in wanted], read, timeout_s=timeout_s)
        num_bytes = sum(sizes)
        self._counters.fetch_speed.record(num_bytes, seconds=self._clock() - started_at)
        self._counters.add("fetched_bytes", num_bytes)
        self._lay_aside_corrupt(wanted, result)
        fetched = _whole_prefix(result)
        self._counters.add("hit_blocks", len(fetched.blocks))
        self._counters.add("missed_blocks", len(wanted) - len(fetched.blocks))
        if result.failure is not None:
            self._counters.add_error(result.failure.kind)
            if not any(result.found):
                raise result.failure
        return fetched

    def put_many(self, blocks: Sequence[StoredBlock]) -> PutReport:
        """See BlockStore; raises ValueError for a block that does not fit the layout."""
        for block in blocks:
            check_fits(block, layout=self.layout)
        encoded: dict[int, EncodedBlock] = {}

        def encode_one(index: int) -> EncodedBlock:
            value = encode(blocks[index], layout=self.layout, compression=self._compression)
            encoded[index] = value
            return value

        started_at = self._clock()
        result = self._shelf.write([block.name for block in blocks], encode_one)
        seconds = self._clock() - started_at
        for outcome, num_blocks in Counter(result.outcomes).items():
            self._counters.add(_OUTCOME_COUNTS[outcome], num_blocks)
        stored = [encoded[i] for i, outcome in enumerate(result.outcomes) if outcome == "stored"]
        num_bytes = sum(value.num_bytes for value in stored)
        self._counters.add("put_bytes", num_bytes)
        self._counters.add("raw_put_bytes", len(stored) * self.layout.payload_bytes)
        self._counters.note_compression(max((v.error_bound for v in stored), default=0.0))
        self._counters.put_speed.record(num_bytes, seconds=seconds)
        if result.failure is not None:
            self._counters.add_error(result.failure.kind)
            return PutReport(result.outcomes, result.failure.kind)
        return PutReport(result.outcomes)

    def pin(self, names: Sequence[BlockHash], *, lease: str) -> int:
        """See BlockStore."""
        self._expire_leases()
        num_pinned = self._counted(
            lambda: self._shelf.pin(names, lease=lease, ttl_s=self._leases.ttl_s)
        )
        if num_pinned:
            self._leases.hold(lease, names)
        return num_pinned

    def renew(self, lease: str) -> bool:
        """See BlockStore."""
        self._expire_leases()
        names = self._leases.names_of(lease)
        if not names:
            return False
        self._counted(lambda: self._shelf.pin(names, lease=lease, ttl_s=self._leases.ttl_s))
        self._leases.hold(lease, names)
        return True

    def release(self, lease: str) -> None:
        """See BlockStore."""
        self._expire_leases()
        names = self._leases.drop(lease)
        if names:
            self._counted(lambda: self._shelf.unpin(names, lease=lease))

    def delete(self, names: Sequence[BlockHash]) -> int:
        """See BlockStore."""
        return self._counted(lambda: self._shelf.delete(names))

    def scan(self) -> Iterator[StoredEntry]:
        """See BlockStore."""
        yield from self._shelf.scan()

    def stats(self) -> StoreStats:
        """See BlockStore."""
        self._expire_leases()
        return self._counters.snapshot(
            num_leases=len(self._leases), num_trimmed=self._shelf.num_trimmed
        )

    def close(self) -> None:
        """See BlockStore."""
        self._shelf.close()

    def _counted(self, call: Callable[[], int] | Callable[[], None]) -> int:
        try:
            return call() or 0
        except StoreUnavailable as error:
            self._counters.add_error(error.kind)
            raise

    def _expire_leases(self) -> None:
        num_ended = self._leases.expire()
        if num_ended:
            self._counters.add("expired_leases", num_ended)
            log.warning("leases expired num=%d ttl_s=%.1f", num_ended, self._leases.ttl_s)

    def _lay_aside_corrupt(self, wanted: Sequence[WantedBlock], result: ShelfRead) -> None:
        useless = []
        for block, found in zip(wanted, result.found, strict=True):
            if not isinstance(found, CorruptBlock):
                continue
            self._counters.add_error(found.kind)
            log.warning("block corrupt kind=%s name=%s: %s", found.kind, block.name.hex(), found)
            # Others may have asked for the tokens that this value does hold.
            if found.kind != "other_tokens":
                useless.append(block.name)
        if useless:
            try:
                self._shelf.delete(useless)
            except StoreUnavailable as error:
                self._counters.add_error(error.kind)


def _whole_prefix(result: ShelfRead) -> Fetched:
    blocks: list[StoredBlock] = []
    for found in result.found:
        if not isinstance(found, StoredBlock):
            return Fetched(tuple(blocks), _reason(found, result.failure))
        blocks.append(found)
    return Fetched(tuple(blocks), "complete")


def _reason(found: CorruptBlock | None, failure: StoreUnavailable | None) -> FetchEnd:
    if found is not None:
        return "corrupt"
    return failure.kind if failure is not None else "absent"
