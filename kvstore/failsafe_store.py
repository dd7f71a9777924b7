"""Wraps any block store so that nothing it does can hold up or break a request.

Slow, gone, refusing or full: what cannot be had is a miss and what cannot be written is dropped,
counted and, once per outage, logged. After some failures in a row nobody waits for the store any
more (CircuitBreaker), until it answers again.
"""

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kvstore.block_hash import BlockHash
from kvstore.block_store import (
    BlockStore,
    Fetched,
    PutReport,
    StoredBlock,
    StoredEntry,
    WantedBlock,
)
from kvstore.circuit_breaker import BreakerLimits, CircuitBreaker
from kvstore.errors import StoreUnavailable
from kvstore.store_stats import StoreCounters, StoreStats

log = logging.getLogger(__name__)
T = TypeVar("T")

_HARMLESS_ENDS = ("complete", "absent", "corrupt", "full", "moved")


class FailsafeStore:
    """A block store that never raises StoreUnavailable; see BlockStore for the rest."""

    def __init__(
        self,
        store: BlockStore,
        *,
        limits: BreakerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        random_source: random.Random | None = None,
    ) -> None:
        self.layout = store.layout
        self._store = store
        self._breaker = CircuitBreaker(
            limits or BreakerLimits(), clock=clock, random_source=random_source or random.Random()
        )
        self._counters = StoreCounters(clock=clock)

    def contains_prefix(self, names: Sequence[BlockHash], *, lease: str | None = None) -> int:
        """See BlockStore; 0 if the store does not answer."""
        return self._guarded(lambda: self._store.contains_prefix(names, lease=lease), otherwise=0)

    def get_many(self, wanted: Sequence[WantedBlock], *, timeout_s: float | None = None) -> Fetched:
        """See BlockStore; ended_by says what kept the rest back."""
        if not self._allows():
            self._counters.add("missed_blocks", len(wanted))
            return Fetched((), "connection")
        try:
            fetched = self._store.get_many(wanted, timeout_s=timeout_s)
        except StoreUnavailable as error:
            self._failed(error.kind, str(error))
            return Fetched((), error.kind)
        self._ended(fetched.ended_by)
        return fetched

    def put_many(self, blocks: Sequence[StoredBlock]) -> PutReport:
        """See BlockStore."""
        if not self._allows():
            self._counters.add("dropped_blocks", len(blocks))
            return PutReport(tuple("dropped" for _ in blocks), "connection")
        report = self._store.put_many(blocks)
        self._ended(report.failure or "complete")
        return report

    def pin(self, names: Sequence[BlockHash], *, lease: str) -> int:
        """See BlockStore; 0 if the store does not answer."""
        return self._guarded(lambda: self._store.pin(names, lease=lease), otherwise=0)

    def renew(self, lease: str) -> bool:
        """See BlockStore; False if the store does not answer."""
        return self._guarded(lambda: self._store.renew(lease), otherwise=False)

    def release(self, lease: str) -> None:
        """See BlockStore; if the store does not answer, the lease ends by itself."""
        self._guarded(lambda: self._store.release(lease), otherwise=None)

    def delete(self, names: Sequence[BlockHash]) -> int:
        """See BlockStore; 0 if the store does not answer."""
        return self._guarded(lambda: self._store.delete(names), otherwise=0)

    def scan(self) -> Iterator[StoredEntry]:
        """See BlockStore; ends early if the store does not answer."""
        nothing: Iterator[StoredEntry] = iter(())
        entries = self._guarded(self._store.scan, otherwise=nothing)
        while True:
            entry = self._guarded(lambda: next(entries, None), otherwise=None)
            if entry is None:
                return
            yield entry

    def stats(self) -> StoreStats:
        """See BlockStore; with what the breaker kept away."""
        inner, outer = self._store.stats(), self._counters.snapshot()
        return dataclasses.replace(
            inner,
            missed_blocks=inner.missed_blocks + outer.missed_blocks,
            dropped_blocks=inner.dropped_blocks + outer.dropped_blocks,
            short_circuits=inner.short_circuits + outer.short_circuits,
            is_open=self._breaker.is_open,
        )

    def close(self) -> None:
        """See BlockStore."""
        self._store.close()

    def _guarded(self, call: Callable[[], T], *, otherwise: T) -> T:
        if not self._allows():
            return otherwise
        try:
            result = call()
        except StoreUnavailable as error:
            self._failed(error.kind, str(error))
            return otherwise
        self._ended("complete")
        return result

    def _allows(self) -> bool:
        allowed = self._breaker.allows()
        if not allowed:
            self._counters.add("short_circuits")
        return allowed

    def _ended(self, how: str) -> None:
        if how not in _HARMLESS_ENDS:
            self._failed(how, "some blocks were not answered for")
        elif self._breaker.succeeded():
            log.warning("store is back")

    def _failed(self, kind: str, message: str) -> None:
        if self._breaker.failed():
            log.warning("store is away kind=%s: %s; serving without it", kind, message)
