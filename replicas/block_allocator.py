"""Hands out KV blocks, counts who refers to them, and finds full ones again by name.

A block is in exactly one state: held (reference count above zero) or free. Free blocks keep the
name and content they had until they are reused, so the pool is also the prefix cache: lecture 10,
10.3 (paging), 10.4 (reference counts), and its remark that the block pool is already a
content-indexable cache.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from replicas.request import KvEvent


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest run of findable blocks for a list of names.

    blocks: their ids, first to last. num_free_blocks: how many of them nobody holds, which sharing
    them would take out of the free blocks. next_is_pending: the first block that was not found is
    being computed by another request.
    """

    blocks: tuple[int, ...]
    num_free_blocks: int
    next_is_pending: bool


class BlockAllocator:
    """A pool of `num_blocks` blocks of `block_size` token positions.

    Free blocks are reused in this order: those without a name, then the least recently freed. A
    request frees its blocks from last to first, so a leaf is always reused before its root.
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._name_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._pending: dict[bytes, object] = {}
        self._events: list[KvEvent] = []
        self._num_shared = 0
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks that can still be found by name."""
        return self._num_cached

    @property
    def num_shared(self) -> int:
        """Blocks with more than one reference."""
        return self._num_shared

    @property
    def num_held(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free)

    def can_allocate(self, num_blocks: int) -> bool:
        """Whether `allocate` would succeed."""
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks with one reference each; their old names are forgotten.

        Asserts that `can_allocate(num_blocks)`.
        """
        assert num_blocks <= len(self._free), (num_blocks, len(self._free))
        blocks = []
        for _ in range(num_blocks):
            block, _none = self._free.popitem(last=False)
            if self._name_of[block] is not None:
                self._forget(block)
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; free ones are taken out of reuse."""
        counts = self._ref_counts
        for block in blocks:
            counts[block] += 1
            if counts[block] == 1:
                del self._free[block]
                self._num_cached -= self._name_of[block] is not None
            elif counts[block] == 2:
                self._num_shared += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block of a request, given first to last."""
        counts = self._ref_counts
        for block in reversed(blocks):
            assert counts[block] > 0, f"block {block} is free already"
            counts[block] -= 1
            if counts[block] == 1:
                self._num_shared -= 1
            elif counts[block] == 0:
                self._free[block] = None
                if self._name_of[block] is None:
                    self._free.move_to_end(block, last=False)
                else:
                    self._num_cached += 1

    def states(self) -> bytes:
        """One byte for each block: 0 free, 1 cached (free and findable), 2 held, 3 shared."""
        return bytes(
            min(count, 2) + 1 if count else name is not None
            for count, name in zip(self._ref_counts, self._name_of, strict=True)
        )

    def ref_count(self, block: int) -> int:
        """How many requests refer to a block."""
        return self._ref_counts[block]

    def block_named(self, name: bytes) -> int | None:
        """The block that bears a name now."""
        return self._block_of.get(name)

    def is_named(self, block: int) -> bool:
        """Whether a block can be found, so that its content must stay what its name says."""
        return self._name_of[block] is not None

    def find_prefix(self, names: Sequence[bytes]) -> PrefixMatch:
        """The blocks that hold the longest findable prefix of `names`."""
        blocks: list[int] = []
        num_free = 0
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                return PrefixMatch(tuple(blocks), num_free, name in self._pending)
            num_free += self._ref_counts[block] == 0
            blocks.append(block)
        return PrefixMatch(tuple(blocks), num_free, next_is_pending=False)

    def publish(
        self, block: int, name: bytes, *, parent: bytes, token_ids: Sequence[int] = ()
    ) -> None:
        """Make a held, full block findable; a block that already bears this name stays the one."""
        assert self._ref_counts[block] > 0, f"block {block} is free"
        self._pending.pop(name, None)
        if name in self._block_of or self._name_of[block] is not None:
            return
        self._name_of[block] = name
        self._block_of[name] = block
        self._events.append(KvEvent("stored", (name,), parent, tuple(token_ids)))

    def announce(self, names: Iterable[bytes], owner: object) -> None:
        """Say that `owner` is going to compute these blocks, so that others may wait for them."""
        for name in names:
            if name not in self._block_of:
                self._pending.setdefault(name, owner)

    def withdraw(self, names: Iterable[bytes], owner: object) -> None:
        """Take back what `owner` announced and has not published."""
        for name in names:
            if self._pending.get(name) is owner:
                del self._pending[name]

    def clear_cache(self) -> None:
        """Forget every name; held blocks keep their content but can no longer be found."""
        for block in self._block_of.values():
            self._name_of[block] = None
        self._block_of.clear()
        self._num_cached = 0
        self._events.append(KvEvent("cleared"))

    def drain_events(self) -> tuple[KvEvent, ...]:
        """What became findable or was forgotten since the last call, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def check(self, references: Iterable[Sequence[int]]) -> None:
        """Assert every invariant, given the block lists of all requests that hold any."""
        expected = [0] * self.num_blocks
        for blocks in references:
            for block in blocks:
                expected[block] += 1
        assert expected == self._ref_counts, "reference counts differ from the references"
        free = {block for block, count in enumerate(expected) if count == 0}
        assert free == set(self._free), "free blocks are not those without a reference"
        for name, block in self._block_of.items():
            assert self._name_of[block] == name, f"block {block} bears another name"
        named = sum(name is not None for name in self._name_of)
        assert named == len(self._block_of), "a block has a name that cannot be found"
        cached = sum(self._name_of[block] is not None for block in free)
        assert cached == self._num_cached, (cached, self._num_cached)
        assert self._num_shared == sum(count > 1 for count in expected)
        assert not self._pending.keys() & self._block_of.keys(), "a stored block is pending"

    def _forget(self, block: int) -> None:
        name = self._name_of[block]
        assert name is not None
        self._name_of[block] = None
        del self._block_of[name]
        self._num_cached -= 1
        self._events.append(KvEvent("removed", (name,)))
