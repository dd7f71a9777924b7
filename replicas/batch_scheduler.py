"""Batch: choose, before every step, which requests run in it and how many tokens of each.

Iteration-level scheduling (lecture 11, 11.2; Orca): a request joins at the next step after it was
admitted and leaves at the end of the step in which it ends. Within a step the order is decodes,
then prefills that have begun, then admissions, all under one token budget (stall-free batches,
Sarathi-Serve), so a long prompt never stops the others from decoding.
"""

from collections.abc import Sequence

from replicas.admission_queue import AdmissionQueue
from replicas.block_allocator import BlockAllocator, PrefixMatch
from replicas.block_table import BlockTables, num_blocks_for
from replicas.config import SchedulerConfig
from replicas.request import FinishReason
from replicas.request_state import RequestState
from replicas.scheduler_totals import SchedulerTotals
from replicas.step_plan import PlannedStep, StepPlan
from replicas.victims import choose_victim

# A request that does not fit lets this many others in before it, then nobody: it must not starve.
MAX_OVERTAKES = 64
# Requests that do not fit and are looked past in one step, so that a step's cost stays bounded.
MAX_PASSED_OVER = 16


class BatchScheduler:
    """Owns the running requests, their blocks and their slots.

    It plans step k + 1 while step k may still be computed: tokens that step k samples count as
    known but unresolved. Batches must be computed in the order in which they were planned.
    """

    def __init__(
        self, config: SchedulerConfig, queue: AdmissionQueue, allocator: BlockAllocator
    ) -> None:
        self.totals = SchedulerTotals()
        self._config = config
        self._queue = queue
        self._allocator = allocator
        self._tables = BlockTables(
            max_num_seqs=config.max_num_seqs,
            max_blocks=num_blocks_for(config.max_model_len, config.block_size),
        )
        self._running: dict[RequestState, None] = {}
        self._num_promised = 0
        self._step = 0

    @property
    def running(self) -> Sequence[RequestState]:
        """Requests that hold a slot, in the order in which they were admitted."""
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        """How many requests hold a slot."""
        return len(self._running)

    def next_batch(self, now: float) -> PlannedStep | None:
        """Plan a step, allocating what it needs; None when there is nothing to compute now."""
        plan = StepPlan(self._config.max_num_batched_tokens)
        preemptions_before = self.totals.preemptions
        if self._allocator.num_free < self._config.watermark_blocks:
            self.totals.low_watermark_steps += 1
        prefills = self._plan_decodes(plan)
        self._plan_prefills(plan, prefills)
        if self.totals.preemptions > preemptions_before:
            plan.drop_preempted()
        for request, count in plan.rows():
            if count > 1:
                self._publish(request, request.num_planned + count)
        if self.totals.preemptions == preemptions_before:
            # After a preemption nobody comes in: it would take the room that was just made.
            self._plan_admissions(plan, now)
        if not len(plan):
            return None
        self._step += 1
        planned = plan.seal(self._step, self._tables, self._config.block_size)
        self.totals.computed_prompt_tokens += planned.num_prompt_tokens
        return planned

    def append_token(self, request: RequestState, token_id: int) -> None:
        """A sampled token of a computed step becomes known."""
        request.num_unresolved -= 1
        request.tokens.append(token_id)
        self.totals.generated_tokens += 1
        if request.slot is None:
            self._queue.note_token()
        elif len(request.tokens) // self._config.block_size > request.num_published:
            self._publish(request, request.num_planned)

    def finish(self, request: RequestState, reason: FinishReason, now: float) -> None:
        """End a request wherever it is; its blocks can be handed out at once.

        A batch in flight may still hold a row of it: batches are computed in order, so that row
        writes before anything planned later writes or reads the same blocks.
        """
        assert request.finish_reason is None, "a request ends once"
        if request.slot is None:
            self._queue.remove(request)
        else:
            self._release(request)
        request.finish_reason = reason
        request.mark(finished_at=now)
        self.totals.count_end(reason)

    def check(self) -> None:
        """Assert every invariant of queue, running requests, tables and allocator."""
        self._queue.check()
        self._allocator.check(request.blocks for request in self._running)
        slots = [request.slot for request in self._running]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert len(slots) + self._tables.num_free_slots == self._config.max_num_seqs
        promised = 0
        for request in self._running:
            assert request.finish_reason is None, "an ended request is running"
            assert request.num_planned <= len(request.blocks) * self._config.block_size
            assert request.num_planned <= len(request.tokens) + request.num_unresolved
            promised += request.num_promised
        assert promised == self._num_promised, (promised, self._num_promised)

    def num_unfilled_slots(self) -> int:
        """Slots of held blocks that hold no token; only last blocks can have any."""
        block_size = self._config.block_size
        return sum(
            len(request.blocks) * block_size - request.num_planned for request in self._running
        )

    # Planning, in the order of a step.

    def _plan_decodes(self, plan: StepPlan) -> list[RequestState]:
        """Rows of one token; returns the running requests that need more."""
        prefills: list[RequestState] = []
        block_size = self._config.block_size
        for request in tuple(self._running):
            if request.slot is None:
                continue
            if request.num_unresolved and self._waits_for_token(request):
                continue
            num_missing = request.num_missing
            if num_missing == 1:
                if request.num_planned < len(request.blocks) * block_size or self._grow(request, 1):
                    plan.add(request, 1)
            elif num_missing:
                prefills.append(request)
        return prefills

    def _plan_prefills(self, plan: StepPlan, prefills: list[RequestState]) -> None:
        for request in prefills:
            if request.slot is None:
                continue
            if plan.budget_left == 0:
                return
            count = min(request.num_missing, plan.budget_left, self._config.chunk_tokens)
            if self._grow(request, count):
                plan.add(request, count)

    def _plan_admissions(self, plan: StepPlan, now: float) -> None:
        if not len(self._queue) or not self._tables.num_free_slots:
            return
        overtaken: list[RequestState] = []
        for request in self._queue.in_order(now):
            if not plan.budget_left or not self._tables.num_free_slots:
                break
            match = self._match(request)
            if request.num_unresolved or self._waits_for_block(request, match, now):
                continue
            if not self._fits(request, match):
                if request.num_overtakes >= MAX_OVERTAKES or len(overtaken) >= MAX_PASSED_OVER:
                    break
                overtaken.append(request)
                continue
            self._start(request, match, now)
            for passed in overtaken:
                passed.num_overtakes += 1
            count = min(request.num_missing, plan.budget_left, self._config.chunk_tokens)
            self._extend(request, self._blocks_short(request, count))
            plan.add(request, count)
            self._publish(request, request.num_planned + count)

    # Admission.

    def _match(self, request: RequestState) -> PrefixMatch:
        """Findable blocks of its known tokens, less the last token, which must be computed."""
        if not self._shares_blocks(request):
            return PrefixMatch((), 0, next_is_pending=False)
        names = request.full_block_names(self._config.block_size, len(request.tokens) - 1)
        return self._allocator.find_prefix(names)

    def _shares_blocks(self, request: RequestState) -> bool:
        """With others, or (prefix caching off) among its own choices through a root of its own."""
        return self._config.enable_prefix_caching or request.origin.num_choices > 1

    def _waits_for_token(self, request: RequestState) -> bool:
        return request.num_unresolved > 0 and request.origin.sampling.needs_last_token

    def _waits_for_block(self, request: RequestState, match: PrefixMatch, now: float) -> bool:
        """Whether another request is computing its next block and it has not waited too long."""
        if not match.next_is_pending:
            return False
        if request.pending_since is None:
            request.pending_since = now
        return now - request.pending_since < self._config.pending_block_timeout_s

    def _fits(self, request: RequestState, match: PrefixMatch) -> bool:
        """Whether its known tokens and some headroom fit above the watermark.

        With nothing else running only the tokens themselves count: the request would otherwise
        wait for room that nobody will give back.
        """
        needed = num_blocks_for(len(request.tokens) + 1, self._config.block_size)
        needed -= len(match.blocks)
        left = self._allocator.num_free - match.num_free_blocks - self._num_promised - needed
        if not self._running:
            return left >= 0
        return left >= self._config.watermark_blocks + self._config.headroom_blocks

    def _start(self, request: RequestState, match: PrefixMatch, now: float) -> None:
        """Give it a slot and the blocks that were found, and announce those it will compute."""
        self._queue.remove(request)
        request.slot = self._tables.take_slot()
        self._running[request] = None
        self._allocator.share(match.blocks)
        self._tables.append(request.slot, match.blocks, at=0)
        request.blocks = list(match.blocks)
        request.num_published = len(match.blocks)
        request.num_planned = len(match.blocks) * self._config.block_size
        request.pending_since = None
        num_blocks = num_blocks_for(len(request.tokens), self._config.block_size)
        request.num_promised = num_blocks - len(match.blocks)
        self._num_promised += request.num_promised
        self._announce(request)
        if request.timeline.scheduled_at is None:
            request.num_cached_tokens = min(request.num_planned, request.num_prompt_tokens)
            self.totals.prompt_tokens += request.num_prompt_tokens
            self.totals.hit_tokens += request.num_cached_tokens
        request.mark(scheduled_at=now)

    def _announce(self, request: RequestState) -> None:
        if not self._shares_blocks(request):
            return
        num_names = len(request.tokens) // self._config.block_size
        names = request.full_block_names(self._config.block_size, len(request.tokens))
        self._allocator.announce(names[request.num_published : num_names], request)
        request.num_announced = num_names

    # Memory.

    def _blocks_short(self, request: RequestState, num_tokens: int) -> int:
        needed = num_blocks_for(request.num_planned + num_tokens, self._config.block_size)
        return needed - len(request.blocks)

    def _grow(self, request: RequestState, num_tokens: int) -> bool:
        """Make room for more tokens, preempting others if need be; False if it lost its place."""
        num_short = self._blocks_short(request, num_tokens)
        while not self._allocator.can_allocate(num_short):
            victim = choose_victim(
                self._running,
                block_size=self._config.block_size,
                is_shared=lambda block: self._allocator.ref_count(block) > 1,
                max_preemptions=self._config.max_preemptions,
            )
            self._preempt(victim)
            if victim is request:
                return False
        self._extend(request, num_short)
        return True

    def _extend(self, request: RequestState, num_blocks: int) -> None:
        if num_blocks <= 0:
            return
        assert request.slot is not None
        blocks = self._allocator.allocate(num_blocks)
        self._tables.append(request.slot, blocks, at=len(request.blocks))
        request.blocks.extend(blocks)
        num_kept_promises = min(num_blocks, request.num_promised)
        request.num_promised -= num_kept_promises
        self._num_promised -= num_kept_promises

    def _publish(self, request: RequestState, num_planned: int) -> None:
        """Make its full blocks findable: those with known tokens that are planned to be computed.

        Findable before they are computed, since whoever finds them is computed later: batches run
        in order, and within a step every layer writes K and V before it attends.
        """
        if not self._shares_blocks(request):
            return
        block_size = self._config.block_size
        names = request.full_block_names(block_size, num_planned)
        for index in range(request.num_published, len(names)):
            self._allocator.publish(
                request.blocks[index],
                names[index],
                parent=request.parent_name(index),
                token_ids=request.tokens[index * block_size : (index + 1) * block_size],
            )
        request.num_published = max(request.num_published, len(names))

    def _preempt(self, request: RequestState) -> None:
        """Take its blocks and its slot; its tokens stay, so nothing but time is lost."""
        self.totals.preemptions += 1
        self.totals.discarded_tokens += request.num_planned
        request.num_preemptions += 1
        self._release(request)
        self._queue.readmit(request)

    def _release(self, request: RequestState) -> None:
        assert request.slot is not None
        self._num_promised -= request.num_promised
        self._allocator.withdraw(request.names[: request.num_announced], request)
        self._allocator.free(request.blocks)
        self._tables.give_back(request.slot)
        del self._running[request]
        request.blocks = []
        request.slot = None
        request.num_planned = 0
        request.num_promised = 0
        request.num_published = 0
        request.num_announced = 0
