"""Renews the leases of a running replica, so that its pins last as long as it lives."""

import logging
import threading

from kvstore.block_store import BlockStore

log = logging.getLogger(__name__)


class LeaseHeartbeat:
    """A thread that renews what it was told to hold, every interval_s; safe from any thread.

    interval_s: a third of the store's lease_ttl_s leaves room for two lost beats.
    """

    def __init__(self, store: BlockStore, *, interval_s: float) -> None:
        self._store = store
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._leases: dict[str, None] = {}
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="store-heartbeat", daemon=True)
        self._thread.start()

    def hold(self, lease: str) -> None:
        """Renew this lease from now on; it must have pinned something."""
        with self._lock:
            self._leases[lease] = None

    def release(self, lease: str) -> None:
        """Renew it no more, and release it in the store."""
        with self._lock:
            self._leases.pop(lease, None)
        self._store.release(lease)

    def close(self) -> None:
        """End the thread; leases that are still held end by themselves."""
        self._is_closing.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_closing.wait(self._interval_s):
            with self._lock:
                leases = list(self._leases)
            for lease in leases:
                if not self._store.renew(lease):
                    log.info("lease could not be renewed lease=%s", lease)
