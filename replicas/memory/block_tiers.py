"""The memory below the device's blocks, as the scheduler sees it: host memory, then the store.

Binds who saves and brings back, who writes behind and who fetches; each of them decides for itself
(DESIGN 5, tiers). Without slots in host memory nothing here does anything.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvstore.break_even import PrefillCost
from replicas.batch import Batch, CopyIn, CopyOut
from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.memory.block_mover import (
    BlockMover,
    FetchDone,
    LookedUp,
    MoverAnswer,
    NoMover,
    StoreDone,
)
from replicas.memory.handoffs import Handoffs
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.move_costs import BlockCost, MoveCosts
from replicas.memory.request_memory import FoundPrefix, RequestMemory
from replicas.memory.residence import Residence
from replicas.memory.store_fetches import StoreFetches
from replicas.memory.swapping import Swapping
from replicas.memory.tier_stats import TierStats, TierTotals
from replicas.memory.write_back import DeviceBlock, WriteBack
from replicas.policies.session_fate import SessionFate, SessionFates
from replicas.request_state import RequestState

# Requests for which the store is asked before there is room for them.
LOOK_AHEAD = 8


@dataclass(frozen=True, slots=True)
class TierSetup:
    """What an engine is given besides its scheduler's settings.

    cost: of a block, to move or to compute. mover: to the store. fetch_timeout_s: longest that a
    request waits for the store. clock: monotonic seconds.
    """

    cost: BlockCost
    mover: BlockMover
    fetch_timeout_s: float
    clock: Callable[[], float]

    @classmethod
    def without_store(
        cls, *, block_size: int, block_bytes: int, clock: Callable[[], float]
    ) -> "TierSetup":
        """Host memory alone, for a model whose prefill costs the same for each token."""
        cost = BlockCost(PrefillCost(1.0, 0.0), block_size, block_bytes)
        return cls(cost, NoMover(), 0.0, clock)


class BlockTiers:
    """Host tier, swapping, write-back, fetches and hand-offs of one engine."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        allocator: BlockAllocator,
        memory: RequestMemory,
        setup: TierSetup,
    ) -> None:
        self._config = config
        self._allocator = allocator
        self._memory = memory
        self._totals = TierTotals()
        self._tier = HostTier(config.num_host_slots)
        self._costs = MoveCosts(setup.cost, clock=setup.clock)
        self._swapping = Swapping(
            config,
            allocator=allocator,
            memory=memory,
            tier=self._tier,
            costs=self._costs,
            totals=self._totals,
        )
        self._mover = setup.mover
        has_store = setup.mover.has_store and config.num_host_slots > 0
        self._asks_store = has_store and config.enable_prefix_caching
        self._write_back = WriteBack(
            allocator=allocator, tier=self._tier, mover=setup.mover, totals=self._totals
        )
        self._fetches = StoreFetches(
            tier=self._tier,
            mover=setup.mover,
            costs=self._costs,
            totals=self._totals,
            block_size=config.block_size,
            timeout_s=setup.fetch_timeout_s,
        )
        self.handoffs = Handoffs(
            memory=memory,
            swapping=self._swapping,
            tier=self._tier,
            mover=setup.mover,
            totals=self._totals,
            block_size=config.block_size,
        )
        self._sessions = SessionFates()
        self._residence = Residence(clock=setup.clock)
        self._clock = setup.clock
        self._step = 1
        if config.num_host_slots and config.store_write_back == "on_eviction":
            allocator.on_reuse = self._rescue

    @property
    def has_copies(self) -> bool:
        """Whether a step would have something to move although no request needs one."""
        return self._write_back.has_copies

    # While a step is planned.

    def begin(self, step: int) -> None:
        """Step number `step` is being planned from here on."""
        self._step = step
        if self._write_back.has_copies:
            self._write_back.plan(self._memory.moves, step=step)

    def look_ahead(self, line: Iterable[RequestState], now: float) -> None:
        """Ask the store for the first requests in the line, before there is a place for them."""
        if not self._asks_store:
            return
        for request in itertools.islice(line, LOOK_AHEAD):
            if not request.num_unresolved and not self._fetches.has_asked(request):
                self.waits(request, self._memory.match(request), now)

    def waits(self, request: RequestState, found: FoundPrefix, now: float) -> bool:
        """Whether a waiting request had better wait on, for blocks from outside this machine."""
        if self.handoffs.waits(request, now):
            return True
        if not self._asks_store or found.num_tokens % self._config.block_size:
            return False

        def num_found_blocks() -> int:
            num_blocks = found.num_tokens // self._config.block_size
            return num_blocks + len(self._swapping.find(request, num_blocks))

        return self._fetches.waits(request, num_found_blocks, now)

    def load(self, request: RequestState, found: FoundPrefix, now: float) -> None:
        """It has just been started with what the device has: bring in what lies beyond."""
        if not self._tier.num_slots:
            return
        if self._config.store_write_back == "on_second_use" and found.source is None:
            self._line_up(request, range(len(found.blocks)))
        num_tokens = self._swapping.load(request, step=self._step)
        num_fetched = min(self._fetches.forget(request), num_tokens)
        self._totals.add("store_hit_tokens", num_fetched)
        self._totals.add("host_hit_tokens", num_tokens - num_fetched)
        session_id = request.origin.session_id
        if session_id is not None:
            self._sessions.begun(session_id, now)

    def save(self, request: RequestState) -> int:
        """It is about to be preempted; how many of its computed tokens are not lost."""
        return self._swapping.save(request, step=self._step)

    def note_published(self, request: RequestState, first: int) -> None:
        """Its full blocks from number `first` on have become findable."""
        if self._config.store_write_back == "always":
            self._line_up(request, range(first, request.num_published))

    # When a request ends.

    def forget(self, request: RequestState) -> None:
        """What was kept or is fetched for a waiting request is not wanted any more."""
        self._swapping.forget(request)
        self._fetches.forget(request)

    def ending(self, request: RequestState, now: float) -> Sequence[int]:
        """Before an ended request's blocks are taken: those that should be reused first."""
        self.forget(request)
        self.handoffs.end(request)
        session_id = request.origin.session_id
        if session_id is None or not request.is_running or not self._tier.num_slots:
            return ()
        residence_s = self._residence.host_s(self._tier.num_available)
        fate = self._sessions.ended(
            session_id,
            now,
            device_residence_s=self._residence.device_s(
                self._allocator.num_free * self._config.block_size
            ),
            outside_residence_s=float("inf") if self._keeps_in_store else residence_s,
        )
        if fate is SessionFate.SWAP:
            self._line_up(request, range(request.num_published))
        self._totals.add(_FATE_COUNTS[fate])
        if fate is not SessionFate.DISCARD:
            return ()
        # What it found when it came may serve others too.
        return request.blocks[request.num_cached_tokens // self._config.block_size :]

    # When a step was computed, and when answers come.

    def note_step(self, batch: Batch, *, run_s: float, move_s: float) -> None:
        """A step was computed, and with it all that it moved."""
        self._tier.note_computed(batch.step)
        if batch.num_tokens:
            starts = batch.positions[batch.query_start[:-1]].tolist()
            rows = zip(starts, batch.context_lens.tolist(), strict=True)
            self._costs.note_step(rows, seconds=run_s - move_s)
        num_out = sum(isinstance(move, CopyOut) for move in batch.moves)
        num_in = sum(isinstance(move, CopyIn) for move in batch.moves)
        if num_out or num_in:
            self._totals.add("copied_out_blocks", num_out)
            self._totals.add("copied_in_blocks", num_in)
            self._totals.add("copy_s", move_s)
            self._costs.note_copies(num_out + num_in, seconds=move_s)
        self._residence.note_step(num_tokens=batch.num_tokens, num_copied_out=num_out)
        self._write_back.send()
        self.handoffs.note_step(self._clock())

    def take_answer(self, answer: MoverAnswer, now: float) -> None:
        """The mover has done something."""
        match answer:
            case StoreDone():
                self._costs.note_store(answer.speeds, has_fetched=False)
                self._write_back.done(answer)
            case LookedUp():
                self._fetches.looked_up(answer, now)
            case FetchDone():
                self._write_back.note_stored(self._fetches.fetched(answer))
            case _:
                self.handoffs.take_answer(answer, now)

    def clear(self) -> None:
        """Forget every block that is not in use."""
        self._write_back.clear()
        self._tier.drop_unpinned()

    def stats(self) -> TierStats:
        """A snapshot."""
        self._totals.counts["dropped_host_blocks_total"] = self._tier.num_dropped
        return self._totals.snapshot(
            num_slots=self._tier.num_slots,
            num_held=self._tier.num_held,
            num_pinned=self._tier.num_pinned,
        )

    def check(self) -> None:
        """Assert every invariant."""
        pins = (self._swapping, self._write_back, self._fetches, self.handoffs)
        self._tier.check([slot for holder in pins for slot in holder.pins()])

    def _rescue(self, block: int, name: bytes, parent: bytes, token_ids: tuple[int, ...]) -> None:
        content = HostBlock(name, parent, token_ids)
        self._write_back.rescue(DeviceBlock(block, content), self._memory.moves, step=self._step)

    @property
    def _keeps_in_store(self) -> bool:
        return self._mover.has_store and self._config.store_write_back != "never"

    def _line_up(self, request: RequestState, indices: Iterable[int]) -> None:
        if not self._config.enable_prefix_caching:
            return
        size = self._config.block_size
        self._write_back.line_up(
            [
                DeviceBlock(
                    request.blocks[index],
                    HostBlock(
                        request.names[index],
                        request.parent_name(index),
                        tuple(request.tokens[index * size : (index + 1) * size]),
                    ),
                )
                for index in indices
            ]
        )


_FATE_COUNTS = {
    SessionFate.KEEP: "sessions_kept",
    SessionFate.SWAP: "sessions_swapped",
    SessionFate.DISCARD: "sessions_discarded",
}
