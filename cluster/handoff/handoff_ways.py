"""Opens the ways by which a replica's hand-offs carry their blocks, as the settings say."""

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.block_stream_transport import BlockStreamTransport
from cluster.pools.pool_config import HandoffTransport
from kvstore.block_store import BlockStore
from kvstore.block_transport import BlockTransport, TransportName
from kvstore.handoff_tables import HandoffTables
from kvstore.shm_transport import ShmTransport
from kvstore.store_transport import StoreTransport
from replicas.memory.host_buffer import HostBuffer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandoffWays:
    """Which ways a replica has. transport: the one that is forced, or auto. binding: of the direct
    stream; None for a replica outside the pools, which opens nothing for others."""

    transport: HandoffTransport = "store"
    binding: BlockStreamBinding | None = None

    def open(
        self, store: BlockStore, tables: HandoffTables, buffer: HostBuffer
    ) -> Sequence[BlockTransport]:
        """Every way that can be opened, the likely fastest first."""
        makers: dict[TransportName, Callable[[], BlockTransport | None]] = {
            "shm": lambda: _shared_memory(store, buffer),
            "grpc": lambda: self._block_stream(store),
            "store": lambda: StoreTransport(store, tables),
        }
        names = [name for name in makers if self._wants(name)]
        made = [(name, _opened(name, makers[name])) for name in names]
        if self.binding is not None:
            # Every slot of a replica of the pools will be used; no hand-off shall pay for it.
            threading.Thread(target=buffer.populate, name="populate", daemon=True).start()
        opened = [transport for _name, transport in made if transport is not None]
        log.info("handoff ways=%s", ",".join(transport.name for transport in opened) or "none")
        return opened

    def _wants(self, name: TransportName) -> bool:
        if self.binding is None:
            return name == "store"
        return self.transport in ("auto", name)

    def _block_stream(self, store: BlockStore) -> BlockTransport | None:
        if self.binding is None:
            return None
        return BlockStreamTransport(store.layout, self.binding)


def _shared_memory(store: BlockStore, buffer: HostBuffer) -> BlockTransport | None:
    if not sys.platform.startswith("linux"):
        return None
    memory = buffer.slots.reshape(-1).data
    return ShmTransport(store.layout, fd=buffer.fd, memory=memory)


def _opened(
    name: TransportName, make: Callable[[], BlockTransport | None]
) -> BlockTransport | None:
    """A way that cannot be opened is done without: whoever wanted it computes for itself."""
    try:
        return make()
    except (OSError, RuntimeError) as error:
        log.warning("handoff way not opened name=%s: %s", name, error)
        return None
