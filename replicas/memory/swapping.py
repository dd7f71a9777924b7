"""Saves a preempted request's blocks in host memory, and brings blocks back when a request starts.

Swapping and the prefix cache are one thing here: what was saved is found again by name, by its
owner or by anybody else, and whatever is nearest is taken (lecture 10, 10.5). Only the tail, which
has no name yet, is kept under a private one.
"""

import hashlib
from dataclasses import dataclass

from replicas.batch import CopyIn, CopyOut
from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.move_costs import MoveCosts
from replicas.memory.request_memory import RequestMemory
from replicas.memory.tier_stats import TierTotals
from replicas.request_state import RequestState


@dataclass(slots=True)
class _Saved:
    """What waits for one preempted request. slots: pinned, with names. tail: its own, without.

    tail_start, tail_stop: the positions whose K and V the tail holds.
    """

    slots: list[int]
    tail: int | None = None
    tail_start: int = 0
    tail_stop: int = 0


class Swapping:
    """Copies of blocks between the device and the host tier, for requests that lose or get a place.

    The copies become moves of the step being planned, in the order in which they are asked for.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        allocator: BlockAllocator,
        memory: RequestMemory,
        tier: HostTier,
        costs: MoveCosts,
        totals: TierTotals,
    ) -> None:
        self._config = config
        self._allocator = allocator
        self._memory = memory
        self._tier = tier
        self._costs = costs
        self._totals = totals
        self._saved: dict[RequestState, _Saved] = {}

    def save(self, request: RequestState, *, step: int) -> int:
        """Before its blocks are taken: copy them out if that is cheaper than computing them again.

        How many of its computed tokens are not lost: those and the ones in blocks of others.
        """
        num_kept = self._num_shared_blocks(request) * self._config.block_size
        num_lost = request.num_planned - num_kept
        if num_lost <= 0 or not self._tier.num_slots:
            self._totals.add("recomputes")
            return 0
        if not self._should_swap(request, num_kept):
            self._totals.add("recomputes")
            return 0
        num_saved = self._copy_out(request, num_kept, step)
        if not num_saved:
            self._totals.add("no_room_swaps")
            self._totals.add("recomputes")
            return 0
        self._totals.add("swaps")
        return num_kept + num_saved

    def load(self, request: RequestState, *, step: int) -> int:
        """As it starts: bring in what host memory has beyond its device blocks; tokens found.

        Asserts that the blocks for all its known tokens can be had.
        """
        num_found = self._bring_in(request, step)
        self.forget(request)
        return num_found

    def forget(self, request: RequestState) -> None:
        """It started or ended: what was kept for it alone may go."""
        saved = self._saved.pop(request, None)
        if saved is None:
            return
        for slot in saved.slots:
            self._tier.unpin(slot)
        if saved.tail is not None:
            self._tier.drop(saved.tail)

    def keep(
        self,
        request: RequestState,
        slots: list[int],
        tail: int | None,
        *,
        tail_start: int,
        tail_stop: int,
    ) -> None:
        """Slots that came for a waiting request; each has a pin, which is Swapping's from here on.

        tail: holds the K and V of its positions tail_start to tail_stop, under a private name.
        """
        assert request not in self._saved, "it has never run here"
        self._saved[request] = _Saved(slots, tail, tail_start, tail_stop)

    def find(self, request: RequestState, first_block: int) -> list[int]:
        """Slots of its known full blocks from `first_block` on, as far as host memory has them."""
        size = self._config.block_size
        names = request.full_block_names(size, len(request.tokens) - 1)
        slots: list[int] = []
        for index in range(first_block, len(names)):
            tokens = request.tokens[index * size : (index + 1) * size]
            slot = self._tier.find(names[index], request.parent_name(index), tokens)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        held = [slot for saved in self._saved.values() for slot in saved.slots]
        return held + [saved.tail for saved in self._saved.values() if saved.tail is not None]

    def _should_swap(self, request: RequestState, num_kept_tokens: int) -> bool:
        if self._config.preemption_mode != "auto":
            return self._config.preemption_mode == "swap"
        if not self._costs.knows_prefill:
            return True
        estimate = self._costs.swap(request.num_planned, num_kept_tokens=num_kept_tokens)
        self._totals.add("swap_s_estimated", estimate.move_s)
        self._totals.add("swap_recompute_s_estimated", estimate.recompute_s)
        return estimate.choice == "move"

    def _num_shared_blocks(self, request: RequestState) -> int:
        """Leading blocks that others hold as well."""
        shared = (self._allocator.ref_count(block) > 1 for block in request.blocks)
        return next((i for i, is_shared in enumerate(shared) if not is_shared), len(request.blocks))

    def _copy_out(self, request: RequestState, num_kept_tokens: int, step: int) -> int:
        """Tokens saved, whole blocks first to last and then the tail, as far as there is room."""
        size = self._config.block_size
        first = num_kept_tokens // size
        # A token that is still being sampled is not known, and its block has no name yet.
        names = request.full_block_names(size, min(request.num_planned, len(request.tokens)))
        saved = self._saved[request] = _Saved([])
        num_saved = 0
        for index in range(first, len(names)):
            slot = self._save_block(request, index, names[index], step)
            if slot is None:
                return num_saved
            saved.slots.append(slot)
            num_saved += size
        if request.num_planned > len(names) * size:
            saved.tail = self._save_tail(request, len(names), step)
            if saved.tail is not None:
                saved.tail_start, saved.tail_stop = len(names) * size, request.num_planned
                num_saved += request.num_planned - len(names) * size
        return num_saved

    def _save_block(self, request: RequestState, index: int, name: bytes, step: int) -> int | None:
        size = self._config.block_size
        tokens = tuple(request.tokens[index * size : (index + 1) * size])
        slot = self._tier.find(name, request.parent_name(index), tokens)
        if slot is None:
            if name in self._tier:
                # On its way from the store, or of other tokens: not worth a second place.
                return None
            block = HostBlock(name, request.parent_name(index), tokens)
            slot = self._copy_block(block, request.blocks[index], step)
            if slot is None:
                return None
        self._tier.pin(slot)
        return slot

    def _save_tail(self, request: RequestState, index: int, step: int) -> int | None:
        """The part-filled last block, or a full one of which a token is not known yet."""
        tokens = tuple(request.tokens[index * self._config.block_size : request.num_planned])
        block = HostBlock(_private_name(request), request.parent_name(index), tokens)
        slot = self._copy_block(block, request.blocks[index], step)
        if slot is not None:
            self._tier.pin(slot)
        return slot

    def _copy_block(self, block: HostBlock, source: int, step: int) -> int | None:
        slot = self._tier.take(block, step=step)
        if slot is not None:
            self._memory.moves.append(CopyOut(source, slot))
            self._totals.add("swapped_blocks")
        return slot

    def _bring_in(self, request: RequestState, step: int) -> int:
        size = self._config.block_size
        if request.num_planned % size or not self._tier.num_slots:
            return 0
        first = request.num_planned // size
        slots = self.find(request, first)
        stop = request.num_planned + len(slots) * size
        saved = self._saved.get(request)
        if saved is not None and saved.tail is not None and stop == saved.tail_start:
            slots.append(saved.tail)
            stop = saved.tail_stop
        assert stop < len(request.tokens), "the last known token must be computed"
        if not slots or not self._is_worth_it(request, stop):
            return 0
        num_found = stop - request.num_planned
        # Taking device blocks may send others to host memory, which must not take these slots.
        for slot in slots:
            self._tier.pin(slot)
        self._memory.grow(request, num_found)
        for slot in slots:
            self._tier.unpin(slot)
        blocks = request.blocks[first:]
        self._memory.moves.extend(map(CopyIn, slots, blocks))
        self._tier.touch(slots, step=step)
        request.num_planned = stop
        self._memory.publish(request, stop)
        return num_found

    def _is_worth_it(self, request: RequestState, stop: int) -> bool:
        is_forced = self._config.preemption_mode == "swap"
        if is_forced or not self._costs.knows_prefill:
            return True
        estimate = self._costs.bring_back(stop, num_cached_tokens=request.num_planned)
        return estimate.choice == "move"


def _private_name(request: RequestState) -> bytes:
    """Of a tail that only its owner may find; no block hash, since those are of tokens."""
    origin = request.origin
    owner = f"{origin.request_id}/{origin.attempt}/{request.choice}"
    return hashlib.sha256(b"pagoda-tail" + owner.encode()).digest()
