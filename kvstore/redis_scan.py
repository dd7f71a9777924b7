"""Walks over the blocks that servers hold, a bounded batch at a time, while others read and write.

SCAN gives every key that stays during the walk at least once; a key that comes or goes meanwhile
may be missed, and one that is given twice is told once.
"""

from collections.abc import Callable, Iterator, Sequence

from kvstore.block_store import Buffer, StoredEntry
from kvstore.errors import StoreUnavailable
from kvstore.redis_keys import pattern, split_key
from kvstore.redis_lanes import Command, RedisLanes
from kvstore.redis_routes import Node
from kvstore.resp_wire import Reply, command

BATCH_KEYS = 500


def scan_entries(
    lanes: RedisLanes, *, namespace: str | None, timeout_s: float
) -> Iterator[tuple[str, StoredEntry]]:
    """(namespace, entry) of every block; raises StoreUnavailable."""
    for batch in scan_keys(lanes, namespace=namespace, timeout_s=timeout_s):
        result = lanes.exchange(
            [Command(key, _parts("STRLEN", key)) for key in batch],
            lambda _, reply: reply if isinstance(reply, int) else 0,
            timeout_s=timeout_s,
        )
        if result.failure is not None:
            raise result.failure
        for key, num_bytes in zip(batch, result.replies, strict=True):
            named = split_key(key)
            # A block that went since has no length.
            if named is not None and num_bytes:
                yield named[0], StoredEntry(named[1], num_bytes)


def scan_keys(
    lanes: RedisLanes, *, namespace: str | None, timeout_s: float
) -> Iterator[list[bytes]]:
    """Keys of blocks, in batches of about BATCH_KEYS; raises StoreUnavailable."""
    for node in lanes.routes.nodes(timeout_s=timeout_s):
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, keys = scan_once(lanes, node, cursor, namespace=namespace, timeout_s=timeout_s)
            fresh = [key for key in keys if key not in seen]
            seen.update(fresh)
            if fresh:
                yield fresh
            if cursor == b"0":
                break


def scan_once(
    lanes: RedisLanes, node: Node, cursor: bytes, *, namespace: str | None, timeout_s: float
) -> tuple[bytes, list[bytes]]:
    """One step of SCAN on one node: where to go on, and keys of blocks."""
    words = ("SCAN", cursor, "MATCH", pattern(namespace), "COUNT", BATCH_KEYS)
    result = lanes.exchange(
        [Command(b"", _parts(*words), node=(node,))], _cursor_and_keys, timeout_s=timeout_s
    )
    if result.failure is not None:
        raise result.failure
    found = result.replies[0]
    if found is None:
        raise StoreUnavailable("the server refuses SCAN", kind="refused")
    return found


def _cursor_and_keys(_: int, reply: Reply) -> tuple[bytes, list[bytes]] | None:
    if not isinstance(reply, list) or len(reply) != 2:
        return None
    cursor, keys = reply
    if not isinstance(cursor, bytes) or not isinstance(keys, list):
        return None
    # The pattern's * may span more than one part of a key.
    return cursor, [key for key in keys if isinstance(key, bytes) and split_key(key) is not None]


def _parts(*words: bytes | str | int) -> Callable[[], Sequence[Buffer]]:
    return lambda: command(*words)
