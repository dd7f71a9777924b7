"""The block pool: references, names, reuse order, and 100,000 random operations."""

import random
from dataclasses import dataclass, field

import pytest

from kvstore.block_hash import child_hash
from replicas.block_allocator import BlockAllocator

ROOT = bytes(32)


def pool(num_blocks: int = 8) -> BlockAllocator:
    return BlockAllocator(num_blocks=num_blocks, block_size=4)


def named(allocator: BlockAllocator, *labels: int) -> tuple[list[int], list[bytes]]:
    """A held chain of full blocks with names, root first."""
    blocks = allocator.allocate(len(labels))
    names = []
    parent = ROOT
    for block, label in zip(blocks, labels, strict=True):
        name = child_hash(parent, [label] * 4)
        allocator.publish(block, name, parent=parent)
        names.append(name)
        parent = name
    return blocks, names


def test_a_block_is_handed_out_once_until_it_is_freed():
    allocator = pool(2)
    first = allocator.allocate(2)
    assert sorted(first) == [0, 1]
    assert not allocator.can_allocate(1)
    allocator.free(first)
    assert sorted(allocator.allocate(2)) == [0, 1]


def test_freeing_twice_is_an_error():
    allocator = pool()
    blocks = allocator.allocate(1)
    allocator.free(blocks)
    with pytest.raises(AssertionError, match="free already"):
        allocator.free(blocks)


def test_a_shared_block_is_free_only_after_its_last_reference():
    allocator = pool(2)
    blocks = allocator.allocate(1)
    allocator.share(blocks)
    assert allocator.num_shared == 1
    allocator.free(blocks)
    assert allocator.num_free == 1
    allocator.free(blocks)
    assert allocator.num_free == 2


def test_freed_blocks_can_be_found_until_they_are_reused():
    allocator = pool(3)
    blocks, names = named(allocator, 1, 2)
    allocator.free(blocks)
    assert allocator.find_prefix(names).blocks == tuple(blocks)
    assert allocator.num_cached == 2
    allocator.allocate(3)
    assert allocator.find_prefix(names).blocks == ()


def test_a_prefix_is_found_up_to_the_first_unknown_name():
    allocator = pool()
    blocks, names = named(allocator, 1, 2, 3)
    match = allocator.find_prefix([*names[:2], b"unknown", names[2]])
    assert match.blocks == tuple(blocks[:2])
    assert match.num_free_blocks == 0


def test_blocks_without_a_name_are_reused_first_then_the_least_recently_freed():
    allocator = pool(4)
    older, older_names = named(allocator, 1)
    newer, newer_names = named(allocator, 2)
    nameless = allocator.allocate(1)
    allocator.free(older)
    allocator.free(newer)
    allocator.free(nameless)
    assert allocator.allocate(2) == [nameless[0], 3]
    assert allocator.allocate(1) == older
    assert allocator.find_prefix(older_names).blocks == ()
    assert allocator.find_prefix(newer_names).blocks == tuple(newer)


def test_leaves_are_reused_before_their_roots():
    allocator = pool(3)
    blocks, names = named(allocator, 1, 2, 3)
    allocator.free(blocks)
    assert allocator.allocate(1) == [blocks[2]]
    assert allocator.find_prefix(names).blocks == tuple(blocks[:2])


def test_a_hit_makes_a_chain_recent_again():
    allocator = pool(4)
    first, first_names = named(allocator, 1, 2)
    second, _names = named(allocator, 3, 4)
    allocator.free(first)
    allocator.free(second)
    allocator.share(first)
    allocator.free(first)
    assert sorted(allocator.allocate(2)) == sorted(second)
    assert allocator.find_prefix(first_names).blocks == tuple(first)


def test_a_name_that_is_taken_stays_with_the_block_that_has_it():
    allocator = pool()
    first, names = named(allocator, 1)
    twin = allocator.allocate(1)
    allocator.publish(twin[0], names[0], parent=ROOT)
    assert allocator.find_prefix(names).blocks == tuple(first)
    allocator.check([first, twin])


def test_an_announced_block_is_pending_until_it_is_published_or_withdrawn():
    allocator = pool()
    owner = object()
    name = child_hash(ROOT, [1] * 4)
    allocator.announce([name], owner)
    assert allocator.find_prefix([name]).next_is_pending
    allocator.withdraw([name], object())
    assert allocator.find_prefix([name]).next_is_pending, "only the owner can take it back"
    allocator.withdraw([name], owner)
    assert not allocator.find_prefix([name]).next_is_pending
    allocator.announce([name], owner)
    blocks = allocator.allocate(1)
    allocator.publish(blocks[0], name, parent=ROOT)
    assert allocator.find_prefix([name]).blocks == tuple(blocks)


def test_events_tell_what_became_findable_and_what_was_forgotten():
    allocator = pool(2)
    blocks, names = named(allocator, 1)
    allocator.free(blocks)
    allocator.allocate(2)
    kinds = [(event.kind, event.block_hashes) for event in allocator.drain_events()]
    assert kinds == [("stored", (names[0],)), ("removed", (names[0],))]
    assert allocator.drain_events() == ()


def test_clearing_forgets_names_but_not_references():
    allocator = pool()
    held, held_names = named(allocator, 1)
    freed, freed_names = named(allocator, 2)
    allocator.free(freed)
    allocator.clear_cache()
    assert allocator.find_prefix(held_names).blocks == ()
    assert allocator.find_prefix(freed_names).blocks == ()
    allocator.check([held])


@dataclass
class _Holder:
    """Random use of a pool, with a plain model of what must hold."""

    allocator: BlockAllocator
    rng: random.Random
    held: list[list[int]] = field(default_factory=list)
    chains: list[list[bytes]] = field(default_factory=list)

    def operate(self) -> None:
        self.rng.choice([self.allocate, self.allocate, self.share, self.free, self.publish])()

    def allocate(self) -> None:
        count = self.rng.randint(1, 6)
        if self.allocator.can_allocate(count):
            blocks = self.allocator.allocate(count)
            assert len(set(blocks)) == count
            self.held.append(blocks)

    def share(self) -> None:
        if self.chains:
            match = self.allocator.find_prefix(self.rng.choice(self.chains))
            if match.blocks:
                self.allocator.share(match.blocks)
                self.held.append(list(match.blocks))

    def free(self) -> None:
        if self.held:
            self.allocator.free(self.held.pop(self.rng.randrange(len(self.held))))

    def publish(self) -> None:
        if self.held:
            parent, names = ROOT, []
            for block in self.rng.choice(self.held):
                name = child_hash(parent, [self.rng.randint(0, 2)] * 4)
                self.allocator.publish(block, name, parent=parent)
                names.append(name)
                parent = name
            self.chains = [*self.chains[-20:], names]


@pytest.mark.parametrize("seed", range(4))
def test_references_and_names_stay_exact_over_random_operations(seed):
    holder = _Holder(pool(24), random.Random(seed))
    for step in range(25_000):
        holder.operate()
        if step % 7 == 0:
            holder.allocator.check(holder.held)
    for blocks in holder.held:
        holder.allocator.free(blocks)
    holder.allocator.check([])
    assert holder.allocator.num_free == 24
