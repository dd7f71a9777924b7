"""Which free cached block gives way first: one class for each order, and nothing else.

Leaves give way before their roots under either order, since whoever uses a leaf uses its root too
and frees it first; replicas.memory.free_blocks sees to the few cases in which that is not so.
"""

import heapq
from collections import OrderedDict
from typing import Protocol


class EvictionOrder(Protocol):
    """Free cached blocks, of which `pop` gives up one; no operation depends on their number."""

    def __len__(self) -> int: ...

    def note_use(self, block: int) -> None:
        """A cached block was found and is shared now."""
        ...

    def add(self, block: int) -> None:
        """A cached block became free."""
        ...

    def restore(self, block: int) -> None:
        """A block that `pop` gave up too early is back, ahead of all others."""
        ...

    def remove(self, block: int) -> None:
        """A free cached block is held again, or its name was forgotten."""
        ...

    def pop(self) -> int:
        """Take out the block that gives way."""
        ...

    def forget(self, block: int) -> None:
        """A block has no name any more: what was known of its use is void."""
        ...


class LeastRecentlyUsed:
    """The block that has been free for longest gives way; every operation takes constant time."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def note_use(self, block: int) -> None:
        """Its use counts once it ends."""

    def add(self, block: int) -> None:
        """The newest."""
        self._blocks[block] = None

    def restore(self, block: int) -> None:
        """The oldest."""
        self._blocks[block] = None
        self._blocks.move_to_end(block, last=False)

    def remove(self, block: int) -> None:
        """Wherever it stands."""
        del self._blocks[block]

    def pop(self) -> int:
        """The oldest."""
        return self._blocks.popitem(last=False)[0]

    def forget(self, block: int) -> None:
        """Nothing was known."""


class LeastFrequentlyUsed:
    """The block that was found least often gives way, of equal ones the one free for longest.

    With dynamic aging (Arlitt et al. 2000): uses count on top of the rank of the block that gave
    way last, so what was popular long ago does not stay for ever. Operations take O(log n).
    """

    def __init__(self) -> None:
        self._num_uses: dict[int, int] = {}
        self._ranks: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._age = 0
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def note_use(self, block: int) -> None:
        """One use more."""
        self._num_uses[block] = self._num_uses.get(block, 0) + 1

    def add(self, block: int) -> None:
        """By its uses so far."""
        self._push(block, self._age + self._num_uses.get(block, 0))

    def restore(self, block: int) -> None:
        """Nothing ranks below the age, which is that of the block that gave way last."""
        self._push(block, -1)

    def remove(self, block: int) -> None:
        """Its place in the heap becomes void."""
        del self._ranks[block]
        # Void places are cleared away before they outnumber the others.
        if len(self._heap) > 2 * len(self._ranks) + 64:
            self._heap = [(*rank, kept) for kept, rank in self._ranks.items()]
            heapq.heapify(self._heap)

    def pop(self) -> int:
        """The lowest rank."""
        while True:
            uses, number, block = heapq.heappop(self._heap)
            if self._ranks.get(block) == (uses, number):
                del self._ranks[block]
                self._age = max(self._age, uses)
                return block

    def forget(self, block: int) -> None:
        """It starts from nothing under its next name."""
        self._num_uses.pop(block, None)

    def _push(self, block: int, uses: int) -> None:
        self._num_added += 1
        self._ranks[block] = (uses, self._num_added)
        heapq.heappush(self._heap, (uses, self._num_added, block))


def eviction_order(eviction_policy: str) -> EvictionOrder:
    """The order that an eviction_policy setting names; ValueError for an unknown one."""
    orders: dict[str, type[LeastRecentlyUsed] | type[LeastFrequentlyUsed]] = {
        "lru": LeastRecentlyUsed,
        "lfu": LeastFrequentlyUsed,
    }
    if eviction_policy not in orders:
        raise ValueError(f"eviction_policy={eviction_policy!r}: expected one of {[*orders]}")
    return orders[eviction_policy]()
