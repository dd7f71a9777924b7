"""Builds the block store that replicas share, from settings: connections, limits, fall-backs.

Opening it waits for no server: a replica starts and serves without its store (DESIGN 6).
"""

import logging
import random
import time
from collections.abc import Callable

from kvstore.block_codec import largest_value_bytes
from kvstore.block_store import BlockLayout
from kvstore.coded_block_store import CodedBlockStore
from kvstore.config import StoreConfig
from kvstore.errors import StoreUnavailable
from kvstore.failsafe_store import FailsafeStore
from kvstore.redis_handoff_tables import RedisHandoffTables
from kvstore.redis_lanes import RedisLanes
from kvstore.redis_routes import routes_to
from kvstore.redis_shelf import RedisShelf, ShelfLimits
from kvstore.redis_store import (
    DEFAULT_MAX_BULK_BYTES,
    ServerInfo,
    TlsFiles,
    server_info,
    without_secrets,
)

log = logging.getLogger(__name__)


def tls_files(config: StoreConfig) -> TlsFiles:
    """The paths for TLS that the settings name."""
    return TlsFiles(config.redis_ca_file, config.redis_cert_file, config.redis_key_file)


def open_lanes(config: StoreConfig, *, clock: Callable[[], float] = time.monotonic) -> RedisLanes:
    """Connections as the settings want them; opened when first used."""
    return RedisLanes(
        routes_to(config.redis_url, tls=tls_files(config), clock=clock),
        num_lanes=config.store_connections,
        chunk_bytes=config.store_in_flight_bytes // config.store_connections,
        clock=clock,
    )


def open_redis_block_store(
    config: StoreConfig, *, layout: BlockLayout, clock: Callable[[], float] = time.monotonic
) -> FailsafeStore:
    """The shared store of one layout; never raises StoreUnavailable, now or later.

    Raises ValueError if a block is larger than a value may be, here or on the server.
    """
    check_value_size(layout, max_bulk_bytes=_max_bulk_bytes(config))
    shelf = RedisShelf(
        open_lanes(config, clock=clock),
        namespace=layout.namespace,
        limits=ShelfLimits(
            timeout_s=config.store_timeout_s,
            fetch_timeout_s=config.store_fetch_timeout_s,
            value_bytes=largest_value_bytes(layout),
            ttl_s=config.store_ttl_s,
        ),
        clock=clock,
    )
    store = CodedBlockStore(
        shelf,
        layout=layout,
        clock=clock,
        lease_ttl_s=config.store_lease_ttl_s,
        compression=config.store_compression,
    )
    return FailsafeStore(store, clock=clock, random_source=random.Random())


def open_redis_handoff_tables(
    config: StoreConfig, *, layout: BlockLayout, clock: Callable[[], float] = time.monotonic
) -> RedisHandoffTables:
    """The tables of hand-offs, on connections of their own: they must not queue behind blocks."""
    return RedisHandoffTables(
        open_lanes(config, clock=clock),
        timeout_s=config.store_timeout_s,
        max_tail_bytes=largest_value_bytes(layout),
    )


def check_value_size(layout: BlockLayout, *, max_bulk_bytes: int) -> None:
    """Raises ValueError if one block makes a value that the server would refuse."""
    value_bytes = largest_value_bytes(layout)
    if value_bytes > max_bulk_bytes:
        raise ValueError(
            f"block_size={layout.block_size}: a block takes {value_bytes} bytes, and the server's "
            f"proto-max-bulk-len is {max_bulk_bytes}; expected smaller blocks, or a larger limit"
        )


def _max_bulk_bytes(config: StoreConfig) -> int:
    info = _server_info(config)
    if info is None:
        return DEFAULT_MAX_BULK_BYTES
    for warning in (*info.warnings(), *info.pin_warnings()):
        log.warning("store: %s", warning)
    return info.max_bulk_bytes


def _server_info(config: StoreConfig) -> ServerInfo | None:
    try:
        return server_info(
            config.redis_url, timeout_s=config.store_fetch_timeout_s, tls=tls_files(config)
        )
    except StoreUnavailable as error:
        log.warning(
            "store is away url=%s kind=%s: %s; serving without it",
            without_secrets(config.redis_url),
            error.kind,
            error,
        )
        return None
