"""Makes room on a server that refuses to (maxmemory-policy noeviction), and never where a pin is.

The server's own eviction cannot be told of pins. Under noeviction it drops nothing and refuses
writes instead; then the writer that was refused trims a sample: of some hundred blocks those that
were idle longest go first, as in Redis' own approximated LRU. Only blocks of the writer's own
layout are touched.
"""

import logging
import threading
from collections.abc import Callable

from kvstore.errors import StoreUnavailable
from kvstore.redis_keys import pins_key
from kvstore.redis_lanes import Command, RedisLanes
from kvstore.redis_scan import scan_once
from kvstore.resp_wire import Reply, command

log = logging.getLogger(__name__)

# Pinned or gone: 0. Otherwise the block's length, after it was removed. One script, because a pin
# may come between a look and a removal.
_EVICT = (
    "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end "
    "local n = redis.call('STRLEN', KEYS[1]) redis.call('DEL', KEYS[1]) return n"
)
_MOST_ROUNDS = 64
_STEP_TIMEOUT_S = 1.0
# What is refused takes memory on its way too, and the next writer should find some room.
_MARGIN = 2


class Trimmer:
    """Removes idle, unpinned blocks of one namespace; safe from any thread, one at a time."""

    def __init__(self, lanes: RedisLanes, *, namespace: str, clock: Callable[[], float]) -> None:
        self.num_trimmed = 0
        self._lanes = lanes
        self._namespace = namespace
        self._clock = clock
        self._is_busy = threading.Lock()
        self._cursor = b"0"
        self._node_number = 0

    def make_room(self, num_bytes: int, *, deadline: float) -> bool:
        """Remove blocks so that num_bytes fit, and as much again; False if that cannot be had."""
        if not self._is_busy.acquire(blocking=False):
            return False
        wanted, freed, num_before = _MARGIN * num_bytes, 0, self.num_trimmed
        try:
            for _ in range(_MOST_ROUNDS):
                if freed >= wanted or self._clock() >= deadline:
                    break
                freed += self._evict_sample(wanted - freed)
        except StoreUnavailable as error:
            log.warning("store trimming ended kind=%s: %s", error.kind, error)
        finally:
            self._is_busy.release()
        log.info(
            "store trimmed blocks=%d bytes=%d wanted_bytes=%d",
            self.num_trimmed - num_before,
            freed,
            wanted,
        )
        return freed >= num_bytes

    def _evict_sample(self, num_bytes: int) -> int:
        keys = self._sample()
        idle_s = self._exchange([(key, command("OBJECT", "IDLETIME", key)) for key in keys])
        by_idleness = sorted(zip(idle_s, keys, strict=True), reverse=True)
        freed = 0
        # A quarter of the sample at most, so that what was used of late outlives it.
        for _, key in by_idleness[: max(1, len(keys) // 4)]:
            if freed >= num_bytes:
                break
            (length,) = self._exchange([(key, command("EVAL", _EVICT, 2, key, pins_key(key)))])
            self.num_trimmed += length > 0
            freed += length
        return freed

    def _sample(self) -> list[bytes]:
        nodes = self._lanes.routes.nodes(timeout_s=_STEP_TIMEOUT_S)
        self._cursor, keys = scan_once(
            self._lanes,
            nodes[self._node_number % len(nodes)],
            self._cursor,
            namespace=self._namespace,
            timeout_s=_STEP_TIMEOUT_S,
        )
        if self._cursor == b"0":
            self._node_number += 1
        return keys

    def _exchange(
        self, commands: list[tuple[bytes, list[bytes | bytearray | memoryview]]]
    ) -> list[int]:
        def number(_: int, reply: Reply) -> int:
            return reply if isinstance(reply, int) else 0

        result = self._lanes.exchange(
            [Command(key, lambda parts=parts: parts) for key, parts in commands],  # type: ignore[misc]
            number,
            timeout_s=_STEP_TIMEOUT_S,
            is_write=True,
        )
        if result.failure is not None:
            raise result.failure
        return [reply or 0 for reply in result.replies]
