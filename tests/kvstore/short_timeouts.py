"""Opens stores on real servers for the tests of what can go wrong, with short time-outs."""

from kvstore.block_store import BlockLayout
from kvstore.config import StoreConfig

FETCH_TIMEOUT_S = 0.4
WRITE_TIMEOUT_S = 0.6
# Beyond a time-out: waking up on a busy machine.
MARGIN_S = 0.5
BIG = BlockLayout("big", "bfloat16", num_layers=8, block_size=16, num_kv_heads=4, head_dim=64)


def config_of(url, **changes):
    settings = {
        "redis_url": url,
        "store_fetch_timeout_s": FETCH_TIMEOUT_S,
        "store_timeout_s": WRITE_TIMEOUT_S,
        "store_in_flight_bytes": 4 * 1024 * 1024,
    }
    return StoreConfig(**(settings | changes))
