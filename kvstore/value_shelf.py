"""What lies under a block store: values by name, without knowing what a value is.

The memory and the Redis store differ only here, so what is said about blocks (verification,
prefixes, counts) is said once, in CodedBlockStore.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvstore.block_codec import EncodedBlock
from kvstore.block_hash import BlockHash
from kvstore.block_store import PutOutcome, StoredBlock, StoredEntry
from kvstore.errors import CorruptBlock, StoreUnavailable

Decoded = StoredBlock | CorruptBlock
Read = Callable[[int, memoryview], Decoded]
"""What is done with the value of the i-th name, in whichever thread received it."""
Encode = Callable[[int], EncodedBlock]
"""Makes the value of the i-th name, only if it is needed, in the thread that sends it."""


@dataclass(frozen=True, slots=True)
class ShelfRead:
    """What was found for each name, None for nothing, and why some could not be asked for."""

    found: tuple[Decoded | None, ...]
    failure: StoreUnavailable | None = None


@dataclass(frozen=True, slots=True)
class ShelfWrite:
    """What became of each value, and why some failed."""

    outcomes: tuple[PutOutcome, ...]
    failure: StoreUnavailable | None = None


class ValueShelf(Protocol):
    """Values of one namespace. Methods may be called from any thread, and block."""

    @property
    def num_trimmed(self) -> int:
        """Values that were removed to make room for others, so far."""
        ...

    def num_present(self, names: Sequence[BlockHash]) -> int:
        """How many of the first names have a value; raises StoreUnavailable."""
        ...

    def read(self, names: Sequence[BlockHash], read: Read, *, timeout_s: float | None) -> ShelfRead:
        """Hand each value to `read` as it arrives; what did not arrive in time is a failure."""
        ...

    def write(self, names: Sequence[BlockHash], encode: Encode) -> ShelfWrite:
        """Store what is not here yet, each value whole or not at all."""
        ...

    def pin(self, names: Sequence[BlockHash], *, lease: str, ttl_s: float) -> int:
        """Keep what is here from being trimmed for ttl_s; how many of the first names are here.

        Raises StoreUnavailable.
        """
        ...

    def unpin(self, names: Sequence[BlockHash], *, lease: str) -> None:
        """Take this lease's pins off; raises StoreUnavailable."""
        ...

    def delete(self, names: Sequence[BlockHash]) -> int:
        """Remove values, pinned or not; how many there were. Raises StoreUnavailable."""
        ...

    def scan(self) -> Iterator[StoredEntry]:
        """Every value, a batch at a time; raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Safe to call twice."""
        ...
