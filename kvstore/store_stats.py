"""Counts what a store does, so that every loss shows (ask what the system is not measuring)."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvstore.bandwidth_meter import BandwidthMeter, LatencyMeter

Count = Literal[
    "hit_blocks",
    "missed_blocks",
    "stored_blocks",
    "present_blocks",
    "dropped_blocks",
    "full_blocks",
    "failed_blocks",
    "expired_leases",
    "short_circuits",
    "raw_put_bytes",
    "put_bytes",
    "fetched_bytes",
]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A snapshot. Counts are since the start; speeds are of late, None before the first transfer.

    hit_blocks, missed_blocks: of those that get_many was asked for. stored_blocks, present_blocks,
    dropped_blocks, full_blocks, failed_blocks: what became of those that were put (PutReport).
    trimmed_blocks: removed by us to make room. expired_leases: ended without release.
    short_circuits: calls that the open breaker answered. raw_put_bytes, put_bytes: K and V given,
    and what of them was sent, header included (they differ by compression). fetched_bytes: values
    read. compression_error: largest error bound of a value that was compressed, in K's and V's own
    units. errors: failures and corruptions by kind. round_trip_s: a lookup's mean. is_open: the
    breaker keeps calls away. num_leases: held now.
    """

    hit_blocks: int = 0
    missed_blocks: int = 0
    stored_blocks: int = 0
    present_blocks: int = 0
    dropped_blocks: int = 0
    full_blocks: int = 0
    failed_blocks: int = 0
    trimmed_blocks: int = 0
    expired_leases: int = 0
    short_circuits: int = 0
    raw_put_bytes: int = 0
    put_bytes: int = 0
    fetched_bytes: int = 0
    compression_error: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)
    put_bytes_per_s: float | None = None
    fetch_bytes_per_s: float | None = None
    round_trip_s: float | None = None
    num_leases: int = 0
    is_open: bool = False


class StoreCounters:
    """The running counts behind a StoreStats; safe from any thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.put_speed = BandwidthMeter(clock=clock)
        self.fetch_speed = BandwidthMeter(clock=clock)
        self.round_trip = LatencyMeter()
        self._lock = threading.Lock()
        self._counts: Counter[Count] = Counter()
        self._errors: Counter[str] = Counter()
        self._compression_error = 0.0

    def add(self, name: Count, amount: int = 1) -> None:
        """Count `amount` more."""
        with self._lock:
            self._counts[name] += amount

    def add_error(self, kind: str) -> None:
        """Count one failure or corruption of this kind."""
        with self._lock:
            self._errors[kind] += 1

    def note_compression(self, error: float) -> None:
        """Remember the largest error bound of a compressed value."""
        with self._lock:
            self._compression_error = max(self._compression_error, error)

    def snapshot(self, *, num_leases: int = 0, num_trimmed: int = 0) -> StoreStats:
        """Everything as it is now."""
        with self._lock:
            counts = {str(name): amount for name, amount in self._counts.items()}
            errors = dict(self._errors)
            compression_error = self._compression_error
        return StoreStats(
            **counts,  # type: ignore[arg-type]
            compression_error=compression_error,
            errors=errors,
            put_bytes_per_s=self.put_speed.bytes_per_s,
            fetch_bytes_per_s=self.fetch_speed.bytes_per_s,
            round_trip_s=self.round_trip.mean_s,
            num_leases=num_leases,
            trimmed_blocks=num_trimmed,
        )
