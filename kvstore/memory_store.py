"""The reference store: values in this process, least recently used first to go.

What it does is what every store promises, with nothing in between; tests hold the Redis store
against it, and an engine without Redis can use it. Several stores may share one shelf, as replicas
share a server.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvstore.block_codec import EncodedBlock
from kvstore.block_hash import BlockHash
from kvstore.block_store import BlockLayout, PutOutcome, StoredEntry
from kvstore.coded_block_store import CodedBlockStore
from kvstore.value_shelf import Encode, Read, ShelfRead, ShelfWrite

_Key = tuple[str, BlockHash]


@dataclass(slots=True)
class _Value:
    content: bytes
    ends_at: float
    pins: dict[str, float] = field(default_factory=dict)

    def is_pinned(self, now: float) -> bool:
        self.pins = {lease: ends_at for lease, ends_at in self.pins.items() if ends_at > now}
        return bool(self.pins)


class Memory:
    """The values of every namespace, bounded in bytes; safe from any thread.

    ttl_s: how long a value is kept since it was written or found; 0 has no end.
    """

    def __init__(self, *, max_bytes: int, clock: Callable[[], float], ttl_s: float = 0.0) -> None:
        self.max_bytes = max_bytes
        self.num_trimmed = 0
        self._ttl_s = ttl_s or float("inf")
        self._clock = clock
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return self._num_bytes

    def check(self) -> None:
        """Assert that the count of bytes is right and within the bound."""
        with self._lock:
            held = sum(len(value.content) for value in self._values.values())
            assert held == self._num_bytes, (held, self._num_bytes)
            assert held <= self.max_bytes, (held, self.max_bytes)

    def find(self, key: _Key) -> bytes | None:
        """The value, which is now the most recently used one."""
        with self._lock:
            value = self._live(key)
            if value is None:
                return None
            self._values.move_to_end(key)
            return value.content

    def touch(self, key: _Key) -> bool:
        """Let a value that is here last ttl_s from now; whether there is one."""
        with self._lock:
            value = self._live(key)
            if value is not None:
                value.ends_at = max(value.ends_at, self._clock() + self._ttl_s)
            return value is not None

    def put(self, key: _Key, encoded: EncodedBlock) -> PutOutcome:
        """Store a value, making room if need be."""
        with self._lock:
            self._remove(key)
            if not self._make_room(encoded.num_bytes):
                return "full"
            # The caller may use its buffers again once the put returns.
            self._set(key, encoded.joined())
            return "stored"

    def replace(self, key: _Key, content: bytes) -> None:
        """Store whatever content under a key, as anybody with a connection to a server could."""
        with self._lock:
            self._remove(key)
            self._set(key, content)

    def pin(self, key: _Key, *, lease: str, ttl_s: float) -> bool:
        """Pin a value that is here; it then lasts as long as the pin at least."""
        with self._lock:
            value = self._live(key)
            if value is None:
                return False
            ends_at = self._clock() + ttl_s
            value.pins[lease] = ends_at
            value.ends_at = max(value.ends_at, ends_at)
            return True

    def is_pinned(self, key: _Key) -> bool:
        """Whether a live lease pins this value."""
        with self._lock:
            value = self._live(key)
            return value is not None and value.is_pinned(self._clock())

    def unpin(self, key: _Key, *, lease: str) -> None:
        """Take one lease's pin off."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                value.pins.pop(lease, None)

    def delete(self, key: _Key) -> bool:
        """Remove a value; whether there was one."""
        with self._lock:
            return self._live(key) is not None and self._remove(key)

    def entries(self) -> list[tuple[_Key, int]]:
        """Every key and the length of its value."""
        with self._lock:
            for key in list(self._values):
                self._live(key)
            return [(key, len(value.content)) for key, value in self._values.items()]

    def _live(self, key: _Key) -> _Value | None:
        value = self._values.get(key)
        if value is not None and value.ends_at <= self._clock():
            self._remove(key)
            return None
        return value

    def _set(self, key: _Key, content: bytes) -> None:
        self._values[key] = _Value(content, self._clock() + self._ttl_s)
        self._num_bytes += len(content)

    def _remove(self, key: _Key) -> bool:
        value = self._values.pop(key, None)
        if value is not None:
            self._num_bytes -= len(value.content)
        return value is not None

    def _make_room(self, num_bytes: int) -> bool:
        if self._num_bytes + num_bytes <= self.max_bytes:
            return True
        now = self._clock()
        victims: list[_Key] = []
        excess_bytes = self._num_bytes + num_bytes - self.max_bytes
        for key, value in self._values.items():
            if excess_bytes <= 0:
                break
            if not value.is_pinned(now):
                victims.append(key)
                excess_bytes -= len(value.content)
        if excess_bytes > 0:
            return False
        for key in victims:
            self._remove(key)
        self.num_trimmed += len(victims)
        return True


class MemoryShelf:
    """One namespace of a Memory."""

    def __init__(self, memory: Memory, *, namespace: str) -> None:
        self._memory = memory
        self._namespace = namespace

    @property
    def num_trimmed(self) -> int:
        """See ValueShelf; of the whole memory."""
        return self._memory.num_trimmed

    def num_present(self, names: Sequence[BlockHash]) -> int:
        """See ValueShelf."""
        is_here = [self._memory.find(self._key(name)) is not None for name in names]
        return (*is_here, False).index(False)

    def read(self, names: Sequence[BlockHash], read: Read, *, timeout_s: float | None) -> ShelfRead:
        """See ValueShelf."""
        contents = [self._memory.find(self._key(name)) for name in names]
        return ShelfRead(
            tuple(
                None if content is None else read(index, memoryview(content))
                for index, content in enumerate(contents)
            )
        )

    def write(self, names: Sequence[BlockHash], encode: Encode) -> ShelfWrite:
        """See ValueShelf."""
        return ShelfWrite(tuple(self._put(name, index, encode) for index, name in enumerate(names)))

    def pin(self, names: Sequence[BlockHash], *, lease: str, ttl_s: float) -> int:
        """See ValueShelf."""
        is_here = [self._memory.pin(self._key(name), lease=lease, ttl_s=ttl_s) for name in names]
        return (*is_here, False).index(False)

    def unpin(self, names: Sequence[BlockHash], *, lease: str) -> None:
        """See ValueShelf."""
        for name in names:
            self._memory.unpin(self._key(name), lease=lease)

    def delete(self, names: Sequence[BlockHash]) -> int:
        """See ValueShelf."""
        return sum(self._memory.delete(self._key(name)) for name in names)

    def scan(self) -> Iterator[StoredEntry]:
        """See ValueShelf."""
        for (namespace, name), num_bytes in self._memory.entries():
            if namespace == self._namespace:
                yield StoredEntry(name, num_bytes)

    def close(self) -> None:
        """Nothing to let go of: the memory may have other users."""

    def _put(self, name: BlockHash, index: int, encode: Encode) -> PutOutcome:
        key = self._key(name)
        return "present" if self._memory.touch(key) else self._memory.put(key, encode(index))

    def _key(self, name: BlockHash) -> _Key:
        return (self._namespace, name)


def memory_store(
    memory: Memory, *, layout: BlockLayout, clock: Callable[[], float], lease_ttl_s: float = 30.0
) -> CodedBlockStore:
    """A store of one layout in a memory."""
    shelf = MemoryShelf(memory, namespace=layout.namespace)
    return CodedBlockStore(shelf, layout=layout, clock=clock, lease_ttl_s=lease_ttl_s)
