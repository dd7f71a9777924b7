"""The block store of one replica: opened anew for each engine core, counted over all of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from cluster.handoff.handoff_ways import HandoffWays
from kvstore.block_store import BlockLayout, BlockStore
from kvstore.block_transport import BlockTransport
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_redis_block_store, open_redis_handoff_tables
from kvstore.store_stats import Count, StoreStats
from replicas.memory.host_buffer import HostBuffer
from replicas.store_mover import HandoffAccess, StoreAccess

_COUNTS = get_args(Count)


class ReplicaStore:
    """Opens the store that the settings name, for whatever layout an engine turns out to have."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        ways: HandoffWays | None = None,
        open_store: Callable[..., BlockStore] = open_redis_block_store,
    ) -> None:
        self._ways = ways or HandoffWays()
        self._config = config
        self._open_store = open_store
        self._store: BlockStore | None = None
        self._before: Counter[str] = Counter()
        self._errors_before: Counter[str] = Counter()

    @property
    def access(self) -> StoreAccess | None:
        """What an engine is given; None where no server was named."""
        if not self._config.redis_url:
            return None
        return StoreAccess(self._open, self._config.store_fetch_timeout_s, self._open_handoffs)

    def stats(self) -> StoreStats | None:
        """The newest store's figures, with counts over all of them; None before the first."""
        if self._store is None:
            return None
        now = self._store.stats()
        counts = {name: self._before[name] + getattr(now, name) for name in _COUNTS}
        errors = dict(self._errors_before + Counter(now.errors))
        return replace(now, **counts, errors=errors)

    def _open_handoffs(self, store: BlockStore) -> HandoffAccess:
        """Ways for the blocks of hand-offs; those of the last core were closed with its mover."""
        tables = open_redis_handoff_tables(self._config, layout=store.layout)

        def open_transports(buffer: HostBuffer) -> Sequence[BlockTransport]:
            return self._ways.open(store, tables, buffer)

        return HandoffAccess(tables, open_transports)

    def _open(self, layout: BlockLayout) -> BlockStore:
        if self._store is not None:
            last = self._store.stats()
            self._before.update({name: getattr(last, name) for name in _COUNTS})
            self._errors_before.update(last.errors)
        self._store = self._open_store(self._config, layout=layout)
        return self._store
