"""The block pool: references, names, reuse order, and 100,000 random operations."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kvstore.block_hash import block_hashes, child_hash
from replicas.block_allocator import BlockAllocator
from replicas.policies.eviction import EvictionOrder, LeastFrequentlyUsed, LeastRecentlyUsed

ROOT = bytes(32)


def pool(num_blocks: int = 8, order: EvictionOrder | None = None) -> BlockAllocator:
    return BlockAllocator(num_blocks=num_blocks, block_size=4, order=order)


@dataclass
class Chain:
    """A prefix of full blocks, each of one token repeated, and where it lies."""

    labels: Sequence[int]
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [label for label in self.labels for _ in range(4)]

    @property
    def names(self) -> list[bytes]:
        return list(block_hashes(self.tokens, block_size=4, root=ROOT))

    def found(self, allocator: BlockAllocator) -> tuple[int, ...]:
        return allocator.find_prefix(self.names, self.tokens, root=ROOT).blocks

    def publish(self, allocator: BlockAllocator, *, first: int = 0) -> None:
        allocator.publish(self.blocks, self.names, self.tokens, root=ROOT, first=first)


def named(allocator: BlockAllocator, *labels: int) -> Chain:
    """A held chain of full blocks with names, root first."""
    chain = Chain(labels, allocator.allocate(len(labels)))
    chain.publish(allocator)
    return chain


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
    chain = named(allocator, 1, 2)
    allocator.free(chain.blocks)
    assert chain.found(allocator) == tuple(chain.blocks)
    assert allocator.num_cached == 2
    allocator.allocate(3)
    assert chain.found(allocator) == ()


def test_a_prefix_is_found_up_to_the_first_unknown_name():
    allocator = pool()
    chain = named(allocator, 1, 2, 3)
    names = [*chain.names[:2], b"unknown", chain.names[2]]
    match = allocator.find_prefix(names, [*chain.tokens, 0, 0, 0, 0], root=ROOT)
    assert match.blocks == tuple(chain.blocks[:2])
    assert match.num_free_blocks == 0


def test_blocks_without_a_name_are_reused_first_then_the_least_recently_freed():
    allocator = pool(4)
    older, newer = named(allocator, 1), named(allocator, 2)
    nameless = allocator.allocate(1)
    allocator.free(older.blocks)
    allocator.free(newer.blocks)
    allocator.free(nameless)
    assert allocator.allocate(2) == [nameless[0], 3]
    assert allocator.allocate(1) == older.blocks
    assert older.found(allocator) == ()
    assert newer.found(allocator) == tuple(newer.blocks)


@pytest.mark.parametrize("order", [LeastRecentlyUsed, LeastFrequentlyUsed])
def test_leaves_are_reused_before_their_roots(order):
    allocator = pool(3, order())
    chain = named(allocator, 1, 2, 3)
    allocator.free(chain.blocks)
    assert allocator.allocate(1) == [chain.blocks[2]]
    assert chain.found(allocator) == tuple(chain.blocks[:2])
    assert allocator.allocate(1) == [chain.blocks[1]]


def test_discarded_blocks_are_reused_first_and_can_no_longer_be_found():
    allocator = pool(4)
    older, newer = named(allocator, 1, 2), named(allocator, 3, 4)
    allocator.free(older.blocks)
    allocator.free(newer.blocks)
    allocator.discard(newer.blocks[1:])
    assert newer.found(allocator) == tuple(newer.blocks[:1])
    assert allocator.allocate(1) == newer.blocks[1:]
    assert older.found(allocator) == tuple(older.blocks)


def test_a_discarded_block_that_others_need_stays():
    allocator = pool(4)
    chain = named(allocator, 1, 2)
    allocator.free(chain.blocks)
    allocator.discard(chain.blocks[:1])
    allocator.share(chain.blocks)
    allocator.discard(chain.blocks)
    assert chain.found(allocator) == tuple(chain.blocks)


def test_a_cached_block_is_told_of_before_it_is_reused():
    allocator = pool(1)
    chain = named(allocator, 1)
    allocator.free(chain.blocks)
    told = []
    allocator.on_reuse = lambda *content: told.append(content)
    allocator.allocate(1)
    assert told == [(chain.blocks[0], chain.names[0], ROOT, (1, 1, 1, 1))]


@pytest.mark.parametrize("order", [LeastRecentlyUsed, LeastFrequentlyUsed])
def test_a_root_freed_before_its_leaf_waits_for_it(order):
    allocator = pool(3, order())
    first = named(allocator, 1)
    # Computed side by side: the second has a copy of its own of the root, and a leaf.
    second = Chain([1, 2], allocator.allocate(2))
    second.publish(allocator)
    allocator.free(first.blocks)
    allocator.free(second.blocks)
    assert allocator.allocate(2) == [second.blocks[0], second.blocks[1]]
    assert allocator.allocate(1) == first.blocks


def test_a_root_whose_leaf_is_held_gives_way_when_nothing_else_is_free():
    allocator = pool(3)
    first = named(allocator, 1)
    second = Chain([1, 2], allocator.allocate(2))
    second.publish(allocator)
    allocator.free(first.blocks)
    assert allocator.allocate(1) == first.blocks
    assert second.found(allocator) == ()
    allocator.check([first.blocks, second.blocks])


def test_a_leaf_is_found_again_once_its_root_was_computed_again():
    allocator = pool(3)
    first = named(allocator, 1)
    second = Chain([1, 2], allocator.allocate(2))
    second.publish(allocator)
    allocator.free(first.blocks)
    again = named(allocator, 1)
    assert second.found(allocator) == (again.blocks[0], second.blocks[1])
    allocator.check([again.blocks, second.blocks])


def test_a_hit_makes_a_chain_recent_again():
    allocator = pool(4)
    first, second = named(allocator, 1, 2), named(allocator, 3, 4)
    allocator.free(first.blocks)
    allocator.free(second.blocks)
    allocator.share(first.blocks)
    allocator.free(first.blocks)
    assert sorted(allocator.allocate(2)) == sorted(second.blocks)
    assert first.found(allocator) == tuple(first.blocks)


def test_with_lfu_what_was_found_often_outlives_what_was_used_last():
    allocator = pool(3, LeastFrequentlyUsed())
    popular, recent = named(allocator, 1), named(allocator, 2)
    for _ in range(3):
        allocator.share(popular.blocks)
        allocator.free(popular.blocks)
    allocator.free(popular.blocks)
    allocator.free(recent.blocks)
    allocator.allocate(2)
    assert popular.found(allocator)
    assert not recent.found(allocator)


def test_with_lfu_what_was_popular_long_ago_gives_way_in_the_end():
    allocator = pool(3, LeastFrequentlyUsed())
    popular = named(allocator, 1)
    for _ in range(5):
        allocator.share(popular.blocks)
        allocator.free(popular.blocks)
    allocator.free(popular.blocks)
    for label in range(2, 40):
        newer = named(allocator, label)
        allocator.share(newer.blocks)
        allocator.free(newer.blocks)
        allocator.free(newer.blocks)
    assert not popular.found(allocator)


def test_a_name_that_is_taken_stays_with_the_block_that_has_it():
    allocator = pool()
    first = named(allocator, 1)
    twin = named(allocator, 1)
    assert first.found(allocator) == tuple(first.blocks)
    allocator.check([first.blocks, twin.blocks])


def test_equal_names_of_unlike_tokens_are_not_believed():
    allocator = pool()
    victim = named(allocator, 1, 2)
    tokens = [9, 9, 9, 9, *victim.tokens[4:]]
    assert allocator.find_prefix(victim.names, tokens, root=ROOT).blocks == ()
    assert allocator.find_prefix(victim.names, victim.tokens, root=b"other").blocks == ()


def test_a_child_of_a_collision_is_neither_named_nor_found():
    allocator = pool()
    victim = named(allocator, 1, 2)
    # Its first block bears the victim's name, so that its children continue the victim's chain.
    liar = allocator.allocate(2)
    tokens = [9, 9, 9, 9, 3, 3, 3, 3]
    child = child_hash(victim.names[0], [3] * 4)
    allocator.publish(liar, [victim.names[0], child], tokens, root=ROOT)
    honest = Chain([1, 3])
    assert honest.names == [victim.names[0], child]
    assert honest.found(allocator) == (victim.blocks[0],)
    allocator.publish(liar, [victim.names[0], child], tokens, root=ROOT, first=1)
    assert honest.found(allocator) == (victim.blocks[0],)


def test_an_announced_block_is_pending_until_it_is_published_or_withdrawn():
    allocator = pool()
    owner = object()
    chain = Chain([1])
    allocator.announce(chain.names, owner)

    def is_pending() -> bool:
        return allocator.find_prefix(chain.names, chain.tokens, root=ROOT).next_is_pending

    assert is_pending()
    allocator.withdraw(chain.names, object())
    assert is_pending(), "only the owner can take it back"
    allocator.withdraw(chain.names, owner)
    assert not is_pending()
    allocator.announce(chain.names, owner)
    chain.blocks = allocator.allocate(1)
    chain.publish(allocator)
    assert chain.found(allocator) == tuple(chain.blocks)


def test_events_tell_what_became_findable_and_what_was_forgotten():
    allocator = pool(2)
    chain = named(allocator, 1)
    allocator.free(chain.blocks)
    allocator.allocate(2)
    stored, removed = allocator.drain_events()
    assert (stored.kind, stored.block_hashes, stored.parent) == ("stored", (chain.names[0],), ROOT)
    assert stored.token_ids == (1, 1, 1, 1)
    assert (removed.kind, removed.block_hashes) == ("removed", (chain.names[0],))
    assert allocator.drain_events() == ()


def test_clearing_forgets_names_but_not_references():
    allocator = pool()
    held, freed = named(allocator, 1), named(allocator, 2)
    allocator.free(freed.blocks)
    allocator.clear_cache()
    assert held.found(allocator) == freed.found(allocator) == ()
    allocator.check([held.blocks])


@dataclass
class _Holder:
    """Random use of a pool, with a plain model of what must hold."""

    allocator: BlockAllocator
    rng: random.Random
    held: list[list[int]] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)

    def operate(self) -> None:
        self.rng.choice(
            [self.allocate, self.allocate, self.share, self.free, self.publish, self.clear]
        )()

    def allocate(self) -> None:
        count = self.rng.randint(1, 6)
        if self.allocator.can_allocate(count):
            blocks = self.allocator.allocate(count)
            assert len(set(blocks)) == count
            self.held.append(blocks)

    def share(self) -> None:
        if self.chains:
            found = self.rng.choice(self.chains).found(self.allocator)
            if found:
                self.allocator.share(found)
                self.held.append(list(found))

    def free(self) -> None:
        if self.held:
            self.allocator.free(self.held.pop(self.rng.randrange(len(self.held))))

    def publish(self) -> None:
        if self.held:
            blocks = self.rng.choice(self.held)
            chain = Chain([self.rng.randint(0, 2) for _ in blocks], blocks)
            chain.publish(self.allocator)
            self.chains = [*self.chains[-20:], chain]

    def clear(self) -> None:
        if self.rng.random() < 0.01:
            self.allocator.clear_cache()


@pytest.mark.parametrize("order", [LeastRecentlyUsed, LeastFrequentlyUsed])
@pytest.mark.parametrize("seed", range(4))
def test_references_and_names_stay_exact_over_random_operations(seed, order):
    holder = _Holder(pool(24, order()), random.Random(seed))
    for step in range(25_000):
        holder.operate()
        if step % 7 == 0:
            holder.allocator.check(holder.held)
    for blocks in holder.held:
        holder.allocator.free(blocks)
    holder.allocator.check([])
    assert holder.allocator.num_free == 24
