"""Blocks that other engines may read where they lie, by the hand-off that they belong to.

What shared memory and the direct stream serve from. Every block goes with the header that it would
have in the store, whose checksum covers K and V: a reader that was too slow, so that the memory has
a new use by now, finds that out by itself.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.block_checksum import crc32
from kvstore.block_codec import encode, read_header
from kvstore.block_hash import BlockHash
from kvstore.block_store import BlockLayout, StoredBlock, WantedBlock
from kvstore.errors import CorruptBlock


@dataclass(frozen=True, slots=True)
class OfferedBlock:
    """header: of the block as a value of the store. keys, values: where they lie."""

    header: bytes
    keys: memoryview
    values: memoryview


class OfferedBlocks:
    """By key of the hand-off and name of the block; safe from any thread."""

    def __init__(self, layout: BlockLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._blocks: dict[BlockHash, dict[BlockHash, OfferedBlock]] = {}

    def __len__(self) -> int:
        """Hand-offs that have blocks here."""
        with self._lock:
            return len(self._blocks)

    def offer(self, key: BlockHash, blocks: Sequence[StoredBlock]) -> None:
        """Let these be found, beside those offered before."""
        made = {block.name: self._encoded(block) for block in blocks}
        with self._lock:
            self._blocks.setdefault(key, {}).update(made)

    def find(self, key: BlockHash, names: Sequence[BlockHash]) -> list[OfferedBlock]:
        """The first of the named blocks, up to one that is not offered."""
        with self._lock:
            offered = self._blocks.get(key, {})
            found: list[OfferedBlock] = []
            for name in names:
                block = offered.get(name)
                if block is None:
                    break
                found.append(block)
            return found

    def withdraw(self, key: BlockHash) -> None:
        """Let nothing of a hand-off be found any more."""
        with self._lock:
            self._blocks.pop(key, None)

    def clear(self) -> None:
        """Let nothing be found any more."""
        with self._lock:
            self._blocks.clear()

    def _encoded(self, block: StoredBlock) -> OfferedBlock:
        header, keys, values = encode(block, layout=self._layout).parts
        return OfferedBlock(bytes(header), memoryview(keys), memoryview(values))


def verify(header: bytes, payload: memoryview, *, layout: BlockLayout, wanted: WantedBlock) -> None:
    """Raises CorruptBlock unless the payload, K and then V, is the wanted block's."""
    found = read_header(header)
    if found.layout != layout or found.compression != "none":
        raise CorruptBlock("another layout", kind="foreign")
    if found.name != wanted.name or found.token_ids != wanted.token_ids:
        raise CorruptBlock("the tokens differ from those asked for", kind="other_tokens")
    if crc32(payload, 0) != found.payload_crc:
        raise CorruptBlock("the CRC of K and V differs", kind="damaged")
