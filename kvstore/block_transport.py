"""What carries the blocks of a hand-off from one engine to another, whichever way it does.

The table is always in the store; the bytes take the way that the two ends can use (DESIGN 5). A
transport may lose whatever it was given: the reader computes what does not come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvstore.block_hash import BlockHash
from kvstore.block_store import FetchEnd, StoredBlock, WantedBlock

TransportName = Literal["store", "shm", "grpc"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where to read a hand-off's blocks. key: of its table. address: what the offering end gave."""

    key: BlockHash
    address: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """num_whole: first blocks of those wanted that are in their targets, verified. num_bytes: of K
    and V that travelled. ended_by: complete, or why the block after the last one did not come.
    """

    num_whole: int
    num_bytes: int
    ended_by: FetchEnd


class BlockTransport(Protocol):
    """One way, both ends of it. Methods may be called from any thread, and block; none raises."""

    @property
    def name(self) -> TransportName:
        """Of the setting and of the table's offers."""
        ...

    @property
    def address(self) -> str:
        """What a reader needs to reach this end; empty where it has nothing to offer now."""
        ...

    def offer(self, key: BlockHash, blocks: Sequence[StoredBlock], *, ttl_s: float) -> bool:
        """Let the readers of a hand-off have these blocks, beside those offered before.

        The bytes stay as they are until `withdraw`. True once every one of them can be read.
        """
        ...

    def withdraw(self, key: BlockHash) -> None:
        """Nobody may read a hand-off's blocks any more; an unknown one is a normal event.

        Who reads all the same, because it was under way, finds another checksum.
        """
        ...

    def fetch(
        self,
        source: Source,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
        *,
        timeout_s: float,
    ) -> Delivery:
        """Read blocks, verified, each into a target of its payload's length (K, then V)."""
        ...

    def close(self) -> None:
        """Withdraw everything and let go of what is open. Safe to call twice."""
        ...
