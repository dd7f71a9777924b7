"""The words in which replicas tell what their prefix caches can find, as far as routing needs them.

The first two are protocols, so that a replica's own events are taken as they arrive: a copy of
every event would cost more than applying it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class KvChange(Protocol):
    """One change of a prefix cache: blocks `stored`, blocks `removed`, or all of it `cleared`."""

    @property
    def kind(self) -> str:
        """stored, removed or cleared; anything else is not understood and ends exactness."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Names of the blocks, parents before children."""
        ...


class KvChanges(Protocol):
    """Consecutive changes of one cache; change i has number first_number + i within its epoch."""

    @property
    def epoch(self) -> int:
        """Counts the lives of the cache, from 1: a new engine core begins a new one, empty."""
        ...

    @property
    def first_number(self) -> int:
        """The number of the first change; the first of an epoch is 0."""
        ...

    @property
    def events(self) -> Sequence[KvChange]:
        """The changes in the order in which they happened."""
        ...


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """A KvChange as a plain value, for whoever has none of a replica's at hand."""

    kind: str
    block_hashes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class KvBatch:
    """KvChanges as a plain value."""

    epoch: int
    first_number: int
    events: tuple[KvChange, ...]


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """A part of all that a cache can find; the next change after it has number `next_number`.

    A large one comes in parts, one right after the other, which bear the same numbers.
    """

    epoch: int
    next_number: int
    block_hashes: tuple[bytes, ...]
    is_first: bool = True
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """A command: ask that replica for a snapshot of its prefix cache.

    reason: attached, gap, backwards, unknown_change, interrupted, unanswered or room_again.
    """

    replica_id: str
    reason: str
