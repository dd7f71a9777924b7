"""Blocks that nobody holds, in the order in which they are reused, leaves before their roots."""

from collections import OrderedDict
from collections.abc import Callable

from replicas.policies.eviction import EvictionOrder


class FreeBlocks:
    """Those without a name come first, the last one freed at the head; then the cached ones.

    order: that of the cached blocks. has_children: whether cached blocks follow on a block, which
    could no longer be found without it. Such a block is passed over until they are gone; that is
    rare, since whoever holds a child mostly holds its parent too (two requests that computed the
    same parent side by side hold one copy each, of which only one bears the name).
    """

    def __init__(
        self, num_blocks: int, order: EvictionOrder, has_children: Callable[[int], bool]
    ) -> None:
        self._nameless: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._order = order
        self._has_children = has_children
        self._cached: set[int] = set()
        self._passed_over: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._nameless) + len(self._cached)

    def __contains__(self, block: int) -> bool:
        return block in self._cached or block in self._nameless

    @property
    def num_cached(self) -> int:
        """Free blocks that bear a name."""
        return len(self._cached)

    def add_nameless(self, block: int) -> None:
        """A block became free that cannot be found."""
        self._nameless[block] = None
        self._nameless.move_to_end(block, last=False)

    def add_cached(self, block: int) -> None:
        """A block became free that can be found."""
        self._cached.add(block)
        self._order.add(block)

    def remove(self, block: int) -> None:
        """A block is held again."""
        if block not in self._cached:
            del self._nameless[block]
            return
        self._cached.remove(block)
        if block in self._passed_over:
            del self._passed_over[block]
        else:
            self._order.remove(block)

    def forget_name(self, block: int) -> None:
        """A cached block can no longer be found."""
        self.remove(block)
        self.add_nameless(block)

    def note_leaf(self, block: int) -> None:
        """The last cached block that followed on this one is gone."""
        if block in self._passed_over:
            del self._passed_over[block]
            self._order.restore(block)

    def pop(self) -> int:
        """Take out the block to be reused."""
        if self._nameless:
            return self._nameless.popitem(last=False)[0]
        while len(self._order):
            block = self._order.pop()
            if not self._has_children(block):
                self._cached.remove(block)
                return block
            self._passed_over[block] = None
        # Only blocks are left on which held ones follow.
        block = next(iter(self._passed_over))
        del self._passed_over[block]
        self._cached.remove(block)
        return block
