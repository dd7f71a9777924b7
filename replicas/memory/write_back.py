"""Chooses which device blocks are copied to host memory, and from there into the store.

A block that nobody asks for twice is not worth the copy, one that waits until it is evicted may
never be shared: so when to write back is a setting (LMCache and Mooncake write all; here a block's
second use is the default). Copies are moves of the next step; the store writes beside the engine.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicas.batch import BlockMove, CopyOut
from replicas.block_allocator import BlockAllocator
from replicas.memory.block_mover import BlockMover, StoreDone, StoreJob
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.tier_stats import TierTotals

# Copies of one step beside what it computes; a block of 360 KiB takes a CPU about 0.1 ms.
MAX_COPIES_PER_STEP = 8
MAX_WAITING = 4096
# Blocks of one job, so that the answer frees slots soon.
MAX_JOB_BLOCKS = 16
# Names remembered as written; 32 bytes and some each.
_MAX_KNOWN = 100_000


class DeviceBlock(NamedTuple):
    """A full device block and what it holds."""

    block: int
    content: HostBlock


@dataclass(slots=True)
class _Job:
    slots: list[int]
    names: list[bytes]


class WriteBack:
    """A bounded line of device blocks to copy out, and the jobs that write them to the store."""

    def __init__(
        self, *, allocator: BlockAllocator, tier: HostTier, mover: BlockMover, totals: TierTotals
    ) -> None:
        self._allocator = allocator
        self._tier = tier
        self._mover = mover
        self._totals = totals
        self._waiting: OrderedDict[bytes, DeviceBlock] = OrderedDict()
        self._unsent: deque[int] = deque()
        self._jobs: dict[int, _Job] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._num_jobs = 0

    @property
    def has_copies(self) -> bool:
        """Whether the next step has something to copy out."""
        return bool(self._waiting)

    def line_up(self, blocks: Sequence[DeviceBlock]) -> None:
        """These are worth keeping beyond the device; copied out in this order.

        Each must be computed by a step that was planned before the next one.
        """
        if not self._tier.num_slots:
            return
        for one in blocks:
            name = one.content.name
            is_done = name in self._known if self._mover.has_store else name in self._tier
            if not is_done and name not in self._waiting and len(self._waiting) < MAX_WAITING:
                self._waiting[name] = one

    def plan(self, moves: list[BlockMove], *, step: int) -> None:
        """Copy out what waits, as moves of step `step`, before anything of that step is planned."""
        for _ in range(min(MAX_COPIES_PER_STEP, len(self._waiting))):
            _name, one = self._waiting.popitem(last=False)
            self._copy(one, moves, step, is_still_there=self._is_there(one))

    def rescue(self, one: DeviceBlock, moves: list[BlockMove], *, step: int) -> None:
        """A block that is about to be reused: copy it out in this step, before it is written to."""
        self._waiting.pop(one.content.name, None)
        self._copy(one, moves, step, is_still_there=True)

    def send(self) -> None:
        """Hand what was copied by computed steps to the mover."""
        quiet: list[int] = []
        while self._unsent and self._tier.is_quiet(self._unsent[0]):
            quiet.append(self._unsent.popleft())
            if len(quiet) == MAX_JOB_BLOCKS or not self._unsent:
                self._send_job(quiet)
                quiet = []
        if quiet:
            self._send_job(quiet)

    def note_stored(self, names: Sequence[bytes]) -> None:
        """The store has these: it need not be given them again for a while."""
        for name in names:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def done(self, answer: StoreDone) -> None:
        """A job has ended: its slots may go."""
        job = self._jobs.pop(answer.job_id)
        for slot in job.slots:
            self._tier.unpin(slot)
        self._totals.add("stored_blocks", answer.num_held)
        if answer.num_held == len(job.names):
            self.note_stored(job.names)

    def clear(self) -> None:
        """Forget what waits to be copied; what is under way goes on."""
        self._waiting.clear()

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        return [*self._unsent, *(slot for job in self._jobs.values() for slot in job.slots)]

    def _copy(
        self, one: DeviceBlock, moves: list[BlockMove], step: int, *, is_still_there: bool
    ) -> None:
        content = one.content
        slot = self._tier.find(content.name, content.parent, content.token_ids)
        if slot is None:
            if not is_still_there or content.name in self._tier:
                return
            slot = self._tier.take(content, step=step)
            if slot is None:
                return
            moves.append(CopyOut(one.block, slot))
        self._offer(slot)

    def _is_there(self, one: DeviceBlock) -> bool:
        """Whether the block has not been reused since it was lined up."""
        return self._allocator.block_named(one.content.name) == one.block

    def _offer(self, slot: int) -> None:
        # The store may be slow: it never has more than half of the tier pinned.
        has_room = self._tier.num_pinned < self._tier.num_slots // 2
        if self._mover.has_store and has_room:
            self._tier.pin(slot)
            self._unsent.append(slot)

    def _send_job(self, slots: list[int]) -> None:
        self._num_jobs += 1
        blocks = tuple(self._tier.block(slot) for slot in slots)
        self._jobs[self._num_jobs] = _Job(list(slots), [block.name for block in blocks])
        self._totals.add("offered_blocks", len(slots))
        self._mover.take(StoreJob(self._num_jobs, blocks))
