"""Keeps block tables of hand-offs in Redis, each with its tail block and both with one end."""

from collections.abc import Sequence

from kvstore.block_hash import BlockHash
from kvstore.block_store import Buffer
from kvstore.errors import StoreUnavailable
from kvstore.handoff_table import MAX_TABLE_BYTES
from kvstore.redis_keys import handoff_keys
from kvstore.redis_lanes import Command, RedisLanes
from kvstore.resp_wire import Reply, RespError, command


class RedisHandoffTables:
    """Tables in Redis; see HandoffTables. timeout_s: longest wait for a write.

    max_tail_bytes: of one block's value.
    """

    def __init__(self, lanes: RedisLanes, *, timeout_s: float, max_tail_bytes: int) -> None:
        self._lanes = lanes
        self._timeout_s = timeout_s
        self._max_tail_bytes = max_tail_bytes

    def put_tail(self, key: BlockHash, tail: Sequence[Buffer], *, ttl_s: float) -> None:
        """See HandoffTables."""
        self._put(handoff_keys(key)[1], tail, ttl_s, self._max_tail_bytes)

    def put(self, key: BlockHash, value: bytes, *, ttl_s: float) -> None:
        """See HandoffTables."""
        self._put(handoff_keys(key)[0], (value,), ttl_s, MAX_TABLE_BYTES)

    def get(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """See HandoffTables."""
        return self._get(handoff_keys(key)[0], timeout_s, MAX_TABLE_BYTES)

    def get_tail(self, key: BlockHash, *, timeout_s: float) -> bytes | None:
        """See HandoffTables."""
        return self._get(handoff_keys(key)[1], timeout_s, self._max_tail_bytes)

    def delete(self, key: BlockHash) -> None:
        """See HandoffTables."""
        keys = handoff_keys(key)
        parts = command("UNLINK", *keys)
        self._one(Command(keys[0], lambda: parts), self._timeout_s, is_write=True)

    def close(self) -> None:
        """See HandoffTables."""
        self._lanes.close()

    def _put(self, key: bytes, value: Sequence[Buffer], ttl_s: float, most_bytes: int) -> None:
        parts = command("PSETEX", key, max(1, round(1000 * ttl_s)), value=value)
        reply = self._one(Command(key, lambda: parts), self._timeout_s, most_bytes, is_write=True)
        if reply != b"OK":
            raise StoreUnavailable("the table was not acknowledged", kind="full")

    def _get(self, key: bytes, timeout_s: float, most_bytes: int) -> bytes | None:
        parts = command("GET", key)
        return self._one(Command(key, lambda: parts), timeout_s, most_bytes)

    def _one(
        self, asked: Command, timeout_s: float, bytes_each: int = 0, *, is_write: bool = False
    ) -> bytes | None:
        result = self._lanes.exchange(
            [asked],
            lambda _index, reply: _content(reply),
            timeout_s=timeout_s,
            bytes_each=bytes_each,
            is_write=is_write,
        )
        if result.failure is not None:
            raise result.failure
        return result.replies[0]


def _content(reply: Reply) -> bytes | None:
    if isinstance(reply, RespError):
        kind = "full" if reply.code == "OOM" else "refused"
        raise StoreUnavailable(reply.message, kind=kind)  # type: ignore[arg-type]
    return bytes(reply) if isinstance(reply, bytes | memoryview) else None
