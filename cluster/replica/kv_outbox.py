"""Holds the news of a prefix cache that one gateway has not taken yet, in order and bounded.

Changes beyond the bound are dropped oldest first, which their numbers show; the gateway then asks
for a snapshot. A snapshot says all that the changes before it said, so it takes their place.
"""

from collections import deque

from cluster.streams.stream_codec import KvEventBatch
from router.prefixes.kv_events import KvSnapshot

KvNews = tuple[tuple[KvSnapshot, ...], tuple[KvEventBatch, ...]]


class KvOutbox:
    """Snapshots and changes for one gateway; the changes always follow the snapshot."""

    def __init__(self, *, max_events: int) -> None:
        self._max_events = max_events
        self._parts: deque[KvSnapshot] = deque()
        self._batches: deque[KvEventBatch] = deque()
        self._num_events = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self._batches)

    def add(self, batch: KvEventBatch) -> None:
        """Changes of one step."""
        self._batches.append(batch)
        self._num_events += len(batch.events)
        while self._num_events > self._max_events:
            self._num_events -= len(self._batches.popleft().events)

    def add_snapshot(self, parts: tuple[KvSnapshot, ...]) -> None:
        """All that the cache can find now; what waited before is told by it."""
        self._parts = deque(parts)
        self._batches.clear()
        self._num_events = 0

    def take(self) -> KvNews:
        """What the next message carries: one part of a snapshot, and changes after the last."""
        parts = (self._parts.popleft(),) if self._parts else ()
        if self._parts:
            return parts, ()
        batches = tuple(self._batches)
        self._batches.clear()
        self._num_events = 0
        return parts, batches
