"""Says which block lies in which slot of host memory, and which slot goes when there is no room.

The tier between the device's blocks and the store (lecture 10, 10.5; DESIGN 5). Bookkeeping only:
bytes are moved by the runner (in the order in which steps are planned) and, for what goes to the
store or comes from it, by a block mover beside the engine.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# Slots looked past, because a step that uses them is not computed yet, before giving up.
_MAX_LOOKED_PAST = 64


@dataclass(frozen=True, slots=True)
class HostBlock:
    """A block and its slot. name, parent: block hashes. token_ids: the block's own tokens.

    The name of a part-filled or not yet nameable tail is made up by the one request that owns it.
    """

    name: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    slot: int = -1


@dataclass(slots=True)
class _Place:
    """A slot in use. pins: who needs it to stay. is_filled: False while a fetch writes to it."""

    block: HostBlock
    tick: int
    pins: int = 0
    is_filled: bool = True


class HostTier:
    """A bounded pool of slots, found by block name.

    A slot is free, filling (a fetch is writing to it), or filled; a filled one may be pinned.
    Blocks without a pin go least recently used first, leaves before roots. A move that was planned
    counts as done for whatever is planned later, but a slot may be handed to a block mover only
    once the steps that use it were computed: `note_computed` says up to which.
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 0, num_slots
        self.num_slots = num_slots
        self._free = deque(range(num_slots))
        self._places: dict[int, _Place] = {}
        self._slot_of: dict[bytes, int] = {}
        self._num_children: Counter[bytes] = Counter()
        self._used_in_step = [0] * num_slots
        self._computed_step = 0
        self._tick = 0
        self._line: list[tuple[int, int]] = []
        self._num_pinned = 0
        self.num_dropped = 0

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Slots that hold a block, or soon will."""
        return len(self._places)

    @property
    def num_pinned(self) -> int:
        """Slots that somebody needs to stay."""
        return self._num_pinned

    @property
    def num_available(self) -> int:
        """Slots that could be taken: free ones and those without a pin."""
        return self.num_slots - self._num_pinned

    def __contains__(self, name: bytes) -> bool:
        return name in self._slot_of

    def find(self, name: bytes, parent: bytes, token_ids: Sequence[int]) -> int | None:
        """The slot of a filled block of this name, if it holds these tokens after that parent."""
        slot = self._slot_of.get(name)
        if slot is None:
            return None
        place = self._places[slot]
        is_same = place.block.parent == parent and place.block.token_ids == tuple(token_ids)
        return slot if place.is_filled and is_same else None

    def block(self, slot: int) -> HostBlock:
        """What a slot holds."""
        return self._places[slot].block

    def take(self, block: HostBlock, *, step: int) -> int | None:
        """A slot that step `step` writes a block to, findable at once; None if all are pinned.

        Asserts that the name is not here.
        """
        slot = self._find_room(quiet=False)
        if slot is not None:
            self._place(slot, block, is_filled=True)
            self._used_in_step[slot] = step
        return slot

    def reserve(self, block: HostBlock) -> int | None:
        """A slot for a fetch, pinned until `fill` or `drop`; None if none can be had now.

        Asserts that the name is not here.
        """
        slot = self._find_room(quiet=True)
        if slot is not None:
            self._place(slot, block, is_filled=False)
            self.pin(slot)
        return slot

    def fill(self, slot: int) -> None:
        """A fetch has written the block; it can be found, and has one pin less."""
        place = self._places[slot]
        assert not place.is_filled, f"slot {slot} is filled already"
        place.is_filled = True
        self.unpin(slot)

    def pin(self, slot: int) -> None:
        """Somebody needs the slot to stay."""
        place = self._places[slot]
        place.pins += 1
        self._num_pinned += place.pins == 1

    def unpin(self, slot: int) -> None:
        """One who needed it no longer does."""
        place = self._places[slot]
        assert place.pins > 0, f"slot {slot} has no pin"
        place.pins -= 1
        self._num_pinned -= place.pins == 0
        self._line_up(slot)

    def drop(self, slot: int) -> None:
        """Free a slot, pinned or not."""
        self._remove(slot)
        self._free.append(slot)

    def drop_unpinned(self) -> None:
        """Forget every block that nobody needs to stay."""
        for slot in [slot for slot, place in self._places.items() if not place.pins]:
            self.drop(slot)

    def touch(self, slots: Sequence[int], *, step: int | None = None) -> None:
        """These were of use, first to last of a prefix; `step` is the one that reads them."""
        for slot in reversed(slots):
            self._tick += 1
            self._places[slot].tick = self._tick
            self._line_up(slot)
            if step is not None:
                self._used_in_step[slot] = step

    def note_computed(self, step: int) -> None:
        """Every move of this step and of those before it has been made."""
        self._computed_step = step

    def is_quiet(self, slot: int) -> bool:
        """Whether no step that is still to be computed uses the slot."""
        return self._used_in_step[slot] <= self._computed_step

    def check(self, pins: Iterable[int]) -> None:
        """Assert every invariant, given the slot of every pin that somebody holds."""
        expected = Counter(pins)
        assert len(self._free) == len(set(self._free)), "a slot is free twice"
        assert set(self._free).isdisjoint(self._places), "a free slot holds a block"
        assert len(self._free) + len(self._places) == self.num_slots, "a slot is lost"
        for slot, place in self._places.items():
            assert place.pins == expected[slot], (slot, place.pins, expected[slot])
            assert place.block.slot == slot, (slot, place.block.slot)
            assert self._slot_of[place.block.name] == slot, f"slot {slot} cannot be found"
        assert len(self._slot_of) == len(self._places)
        assert self._num_pinned == sum(place.pins > 0 for place in self._places.values())
        parents = Counter(place.block.parent for place in self._places.values())
        assert parents == self._num_children, "children are counted wrongly"
        lined_up = {slot for tick, slot in self._line if self._is_current(tick, slot)}
        evictable = {slot for slot in self._places if self._is_evictable(slot)}
        assert evictable <= lined_up, evictable - lined_up

    def _place(self, slot: int, block: HostBlock, *, is_filled: bool) -> None:
        assert block.name not in self._slot_of, "the block is here already"
        self._tick += 1
        held = replace(block, slot=slot)
        self._places[slot] = _Place(held, self._tick, is_filled=is_filled)
        self._slot_of[block.name] = slot
        self._num_children[block.parent] += 1
        self._line_up(slot)

    def _remove(self, slot: int) -> None:
        place = self._places.pop(slot)
        self._num_pinned -= place.pins > 0
        block = place.block
        del self._slot_of[block.name]
        self._num_children[block.parent] -= 1
        if not self._num_children[block.parent]:
            del self._num_children[block.parent]
            parent_slot = self._slot_of.get(block.parent)
            if parent_slot is not None:
                self._line_up(parent_slot)

    def _find_room(self, *, quiet: bool) -> int | None:
        # The slot that was freed longest ago: where that one is not quiet, others hardly are.
        if self._free and (not quiet or self.is_quiet(self._free[0])):
            return self._free.popleft()
        looked_past: list[tuple[int, int]] = []
        found = None
        while self._line and len(looked_past) < _MAX_LOOKED_PAST:
            tick, slot = heapq.heappop(self._line)
            if not self._is_current(tick, slot) or not self._is_evictable(slot):
                continue
            if quiet and not self.is_quiet(slot):
                looked_past.append((tick, slot))
                continue
            found = slot
            break
        for entry in looked_past:
            heapq.heappush(self._line, entry)
        if found is not None:
            self._remove(found)
            self.num_dropped += 1
        return found

    def _line_up(self, slot: int) -> None:
        """Put a block into the line of those that may go; stale entries are found out later."""
        if self._is_evictable(slot):
            heapq.heappush(self._line, (self._places[slot].tick, slot))
            if len(self._line) > 4 * self.num_slots + 64:
                self._line = [entry for entry in set(self._line) if self._is_current(*entry)]
                heapq.heapify(self._line)

    def _is_evictable(self, slot: int) -> bool:
        place = self._places[slot]
        return place.is_filled and not place.pins and not self._num_children[place.block.name]

    def _is_current(self, tick: int, slot: int) -> bool:
        place = self._places.get(slot)
        return place is not None and place.tick == tick
