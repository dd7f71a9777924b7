"""Keeps block tables of hand-offs where every replica finds them, for as long as they are good.

A private tail block lies beside its table and ends with it, so that nothing is left of a hand-off
that nobody fetched.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from kvstore.block_hash import BlockHash
from kvstore.block_store import Buffer


class HandoffTables(Protocol):
    """Values by table key. Methods may be called from any thread, and block.

    Each raises StoreUnavailable when the store cannot answer in time.
    """

    def put_tail(self, key: BlockHash, tail: Sequence[Buffer], *, ttl_s: float) -> None:
        """Keep the tail block of a table that is about to be written: one value, in parts."""
        ...

    def put(self, key: BlockHash, value: bytes, *, ttl_s: float) -> None:
        """Publish a table; from now on it can be read, for ttl_s at most."""
        ...

    def get(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """A table; None for an unknown or expired one, which is a normal event."""
        ...

    def get_tail(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """The tail block beside a table."""
        ...

    def delete(self, key: BlockHash) -> None:
        """Remove a table and its tail, if they are there."""
        ...

    def close(self) -> None:
        """Let go of connections. Safe to call twice; the tables stay."""
        ...


class MemoryHandoffTables:
    """Tables in this process, which several engines may share; safe from any thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[tuple[str, BlockHash], tuple[bytes, float]] = {}

    def __len__(self) -> int:
        """Tables and tails that are still good."""
        with self._lock:
            self._expire()
            return len(self._values)

    def put_tail(self, key: BlockHash, tail: Sequence[Buffer], *, ttl_s: float) -> None:
        """See HandoffTables."""
        self._put("tail", key, b"".join(tail), ttl_s)

    def put(self, key: BlockHash, value: bytes, *, ttl_s: float) -> None:
        """See HandoffTables."""
        self._put("table", key, value, ttl_s)

    def get(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """See HandoffTables."""
        return self._get("table", key)

    def get_tail(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """See HandoffTables."""
        return self._get("tail", key)

    def delete(self, key: BlockHash) -> None:
        """See HandoffTables."""
        with self._lock:
            for kind in ("table", "tail"):
                self._values.pop((kind, key), None)

    def close(self) -> None:
        """Nothing to let go of: the tables may have other users."""

    def _put(self, kind: str, key: BlockHash, value: bytes, ttl_s: float) -> None:
        with self._lock:
            self._expire()
            self._values[kind, key] = (value, self._clock() + ttl_s)

    def _get(self, kind: str, key: BlockHash) -> bytes | None:
        with self._lock:
            self._expire()
            value = self._values.get((kind, key))
            return value[0] if value is not None else None

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, (_value, ends_at) in self._values.items() if ends_at <= now]:
            del self._values[key]
