"""Hands out KV blocks, counts who refers to them, and finds full ones again by name.

A block is in exactly one state: held (reference count above zero) or free. Free blocks keep the
name and content they had until they are reused, so the pool is also the prefix cache: lecture 10,
10.3 (paging), 10.4 (reference counts), and its remark that the block pool is already a
content-indexable cache.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from replicas.memory.free_blocks import FreeBlocks
from replicas.memory.named_blocks import NamedBlocks
from replicas.policies.eviction import EvictionOrder, LeastRecentlyUsed
from replicas.request import KvEvent

OnReuse = Callable[[int, bytes, bytes, tuple[int, ...]], None]


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

    Free blocks are reused in this order: those without a name, then the cached ones as `order`
    says (the least recently freed first), leaves before their roots.
    on_reuse: told, when a cached block is about to be handed out, the block, its name, its parent's
    name and its tokens; what it holds can still be copied.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, order: EvictionOrder | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # An empty order counts as false.
        self._order = LeastRecentlyUsed() if order is None else order
        self._ref_counts = [0] * num_blocks
        self._free = FreeBlocks(num_blocks, self._order, self._has_children)
        self._named = NamedBlocks(num_blocks, block_size, self._free.note_leaf)
        self._pending: dict[bytes, object] = {}
        self._events: list[KvEvent] = []
        self._num_shared = 0
        self.on_reuse: OnReuse | None = None

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks that can still be found by name."""
        return self._free.num_cached

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
            block = self._free.pop()
            if self._named.is_named(block):
                if self.on_reuse is not None:
                    self.on_reuse(block, *self._named.content(block))
                self._order.forget(block)
                self._events.append(KvEvent("removed", (self._named.remove(block),)))
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; free ones are taken out of reuse."""
        counts = self._ref_counts
        for block in blocks:
            counts[block] += 1
            if self._named.is_named(block):
                self._order.note_use(block)
            if counts[block] == 1:
                self._free.remove(block)
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
                if self._named.is_named(block):
                    self._free.add_cached(block)
                else:
                    self._free.add_nameless(block)

    def states(self) -> bytes:
        """One byte for each block: 0 free, 1 cached (free and findable), 2 held, 3 shared."""
        return bytes(
            min(count, 2) + 1 if count else self._named.is_named(block)
            for block, count in enumerate(self._ref_counts)
        )

    def ref_count(self, block: int) -> int:
        """How many requests refer to a block."""
        return self._ref_counts[block]

    def block_named(self, name: bytes) -> int | None:
        """The block that bears a name now."""
        return self._named.block_named(name)

    def is_named(self, block: int) -> bool:
        """Whether a block can be found, so that its content must stay what its name says."""
        return self._named.is_named(block)

    def find_prefix(
        self, names: Sequence[bytes], token_ids: Sequence[int], *, root: bytes
    ) -> PrefixMatch:
        """The blocks that hold the longest findable prefix of `token_ids`, every token compared.

        names: of its full blocks, which begin with `root`.
        """
        blocks = self._named.find(names, token_ids, root)
        num_free = sum(self._ref_counts[block] == 0 for block in blocks)
        is_all = len(blocks) == len(names)
        return PrefixMatch(
            tuple(blocks), num_free, not is_all and names[len(blocks)] in self._pending
        )

    def publish(
        self,
        blocks: Sequence[int],
        names: Sequence[bytes],
        token_ids: Sequence[int],
        *,
        root: bytes,
        first: int = 0,
    ) -> None:
        """Make held, full blocks findable: the `first`-th of `blocks` and all after it.

        blocks, names, token_ids: of the whole prefix, which begins with `root`. Where another block
        bears the name already it stays the one.
        """
        for index in range(first, len(names)):
            assert self._ref_counts[blocks[index]] > 0, f"block {blocks[index]} is free"
            self._pending.pop(names[index], None)
        for name, parent, tokens in self._named.add(blocks, names, token_ids, root, first=first):
            self._events.append(KvEvent("stored", (name,), parent, tokens))

    def announce(self, names: Iterable[bytes], owner: object) -> None:
        """Say that `owner` is going to compute these blocks, so that others may wait for them."""
        for name in names:
            if name not in self._named:
                self._pending.setdefault(name, owner)

    def withdraw(self, names: Iterable[bytes], owner: object) -> None:
        """Take back what `owner` announced and has not published."""
        for name in names:
            if self._pending.get(name) is owner:
                del self._pending[name]

    def discard(self, blocks: Sequence[int]) -> None:
        """Forget the names of a prefix's last blocks, so that they are reused before others.

        Those that somebody holds, and those on which other blocks follow, keep theirs.
        """
        for block in reversed(blocks):
            is_free = self._ref_counts[block] == 0 and self._named.is_named(block)
            if is_free and not self._has_children(block):
                self._order.forget(block)
                self._free.forget_name(block)
                self._events.append(KvEvent("removed", (self._named.remove(block),)))

    def clear_cache(self) -> None:
        """Forget every name; held blocks keep their content but can no longer be found."""
        for block in self._named.blocks():
            self._order.forget(block)
            if self._ref_counts[block] == 0:
                self._free.forget_name(block)
        self._named.clear()
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
        assert len(self._free) == expected.count(0), "free blocks are not those without a reference"
        assert all((block in self._free) == (count == 0) for block, count in enumerate(expected))
        self._named.check()
        cached = sum(
            self._named.is_named(block) for block in range(self.num_blocks) if not expected[block]
        )
        assert cached == self.num_cached, (cached, self.num_cached)
        assert self._num_shared == sum(count > 1 for count in expected)
        assert not any(name in self._named for name in self._pending), "a stored block is pending"

    def _has_children(self, block: int) -> bool:
        return self._named.has_children(block)
