"""Finds full blocks by name, and believes no name before it has compared the tokens.

A name is a 256-bit chain hash, so equal names of unlike prefixes would take a broken hash or a
crafted one; yet serving one tenant another's K and V is worth more than that trust (prefix caches
have been attacked this way: CVE-2025-25183). Each entry keeps its own tokens and its parent entry,
and a prefix is found only if every link holds.
"""

from collections.abc import Callable, Sequence


class _Entry:
    """A named block: its own tokens, and the entry before it (None for the first of a prompt)."""

    __slots__ = ("block", "name", "num_children", "parent", "root", "token_ids")

    def __init__(
        self, block: int, name: bytes, parent: "_Entry | None", root: bytes, tokens: tuple[int, ...]
    ) -> None:
        self.block = block
        self.name = name
        self.parent = parent
        self.root = root
        self.token_ids = tokens
        self.num_children = 0


class NamedBlocks:
    """Names of blocks of `block_size` tokens, with what they stand for.

    on_leaf: told a block when the last named block that followed on it lost its name.
    """

    def __init__(self, num_blocks: int, block_size: int, on_leaf: Callable[[int], None]) -> None:
        self._block_size = block_size
        self._by_name: dict[bytes, _Entry] = {}
        self._entry_of: list[_Entry | None] = [None] * num_blocks
        self._on_leaf = on_leaf

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: bytes) -> bool:
        return name in self._by_name

    def block_named(self, name: bytes) -> int | None:
        """The block that bears a name, whatever it stands for."""
        entry = self._by_name.get(name)
        return None if entry is None else entry.block

    def is_named(self, block: int) -> bool:
        """Whether the block can be found."""
        return self._entry_of[block] is not None

    def content(self, block: int) -> tuple[bytes, bytes, tuple[int, ...]]:
        """What a named block stands for: its name, its parent's name or the root, its tokens."""
        entry = self._entry_of[block]
        assert entry is not None, f"block {block} has no name"
        return entry.name, entry.parent.name if entry.parent else entry.root, entry.token_ids

    def has_children(self, block: int) -> bool:
        """Whether named blocks follow on this one."""
        entry = self._entry_of[block]
        return entry is not None and entry.num_children > 0

    def blocks(self) -> list[int]:
        """Every block that can be found."""
        return [entry.block for entry in self._by_name.values()]

    def find(self, names: Sequence[bytes], token_ids: Sequence[int], root: bytes) -> list[int]:
        """Blocks that hold the longest findable prefix of token_ids [at least names * block_size].

        names: of the prefix's full blocks. root: what the names begin with.
        """
        entries = self._find(names, token_ids, root)
        return [entry.block for entry in entries]

    def add(
        self,
        blocks: Sequence[int],
        names: Sequence[bytes],
        token_ids: Sequence[int],
        root: bytes,
        *,
        first: int,
    ) -> list[tuple[bytes, bytes, tuple[int, ...]]]:
        """Name the blocks from `first` on of a prefix that lies in `blocks`; what is new of it.

        A name that another block has already stays there. Nothing is named whose parent cannot be
        found. Returns (name, parent's name, tokens) of each new name.
        """
        parent = self._entry_of[blocks[first - 1]] if first else None
        if first and (parent is None or parent.name != names[first - 1]):
            before = self._find(names[:first], token_ids, root)
            if len(before) < first:
                return []
            parent = before[-1]
        added = []
        for index in range(first, len(names)):
            tokens = self._tokens(token_ids, index)
            entry = self._by_name.get(names[index])
            if entry is None:
                block = blocks[index]
                if self._entry_of[block] is not None:
                    break
                entry = _Entry(block, names[index], parent, root, tokens)
                self._by_name[entry.name] = self._entry_of[block] = entry
                if parent is not None:
                    parent.num_children += 1
                added.append((entry.name, parent.name if parent else root, tokens))
            elif not self._follows(entry, parent, root, tokens):
                break
            parent = entry
        return added

    def remove(self, block: int) -> bytes:
        """Forget a block's name, which is returned."""
        entry = self._entry_of[block]
        assert entry is not None, f"block {block} has no name"
        self._entry_of[block] = None
        del self._by_name[entry.name]
        self._leave(entry.parent)
        return entry.name

    def clear(self) -> None:
        """Forget every name."""
        for block in self.blocks():
            self._entry_of[block] = None
        self._by_name.clear()

    def check(self) -> None:
        """Assert that both directions agree and that children are counted right."""
        num_children = dict.fromkeys(self._by_name, 0)
        for name, entry in self._by_name.items():
            assert self._entry_of[entry.block] is entry, f"block {entry.block} bears another name"
            assert entry.name == name
            if entry.parent is not None and self._by_name.get(entry.parent.name) is entry.parent:
                num_children[entry.parent.name] += 1
        named = sum(entry is not None for entry in self._entry_of)
        assert named == len(self._by_name), "a block has a name that cannot be found"
        for name, entry in self._by_name.items():
            assert entry.num_children == num_children[name], name

    def _find(self, names: Sequence[bytes], token_ids: Sequence[int], root: bytes) -> list[_Entry]:
        found: list[_Entry] = []
        parent: _Entry | None = None
        for index, name in enumerate(names):
            entry = self._by_name.get(name)
            if entry is None or not self._follows(
                entry, parent, root, self._tokens(token_ids, index)
            ):
                break
            found.append(entry)
            parent = entry
        return found

    def _tokens(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        size = self._block_size
        return tuple(token_ids[index * size : (index + 1) * size])

    def _follows(
        self, entry: _Entry, parent: _Entry | None, root: bytes, tokens: tuple[int, ...]
    ) -> bool:
        """Whether an entry stands for these tokens after that parent."""
        if entry.token_ids != tokens or entry.root != root:
            return False
        if entry.parent is parent:
            return True
        if not _is_same_prefix(entry.parent, parent):
            return False
        # Its parent was evicted and has come back in another block.
        self._leave(entry.parent)
        entry.parent = parent
        if parent is not None:
            parent.num_children += 1
        return True

    def _leave(self, parent: _Entry | None) -> None:
        if parent is None:
            return
        parent.num_children -= 1
        if parent.num_children == 0 and self._entry_of[parent.block] is parent:
            self._on_leaf(parent.block)


def _is_same_prefix(one: _Entry | None, other: _Entry | None) -> bool:
    while one is not other:
        if one is None or other is None or one.token_ids != other.token_ids:
            return False
        one, other = one.parent, other.parent
    return True
