"""Batch: choose, before every step, which requests run in it and how many tokens of each.

Iteration-level scheduling (lecture 11, 11.2; Orca): a request joins at the next step after it was
admitted and leaves at the end of the step in which it ends. Within a step the order is decodes,
then prefills that have begun, then admissions, all under one token budget (stall-free batches,
Sarathi-Serve), so a long prompt never stops the others from decoding. Prompts beyond those that
fill the processor wait for the next step: they would only make each other late. A step of outputs
that is under way may be overtaken, between its layers, by a prompt that comes in.
"""

from collections.abc import Callable, Sequence

from replicas.admission_queue import AdmissionQueue
from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.memory.block_tiers import BlockTiers, TierSetup
from replicas.memory.request_memory import FoundPrefix, RequestMemory
from replicas.overtaking import Overtaking
from replicas.request import FinishReason
from replicas.request_state import RequestState
from replicas.scheduler_totals import SchedulerTotals
from replicas.speculation.planning import plan_guesses
from replicas.speculation.speculation import Speculation
from replicas.step_in_flight import StepInFlight
from replicas.step_plan import PlannedStep, StepPlan
from replicas.victims import choose_victim

# A request that does not fit lets this many others in before it, then nobody: it must not starve.
MAX_OVERTAKES = 64
# Requests that do not fit and are looked past in one step, so that a step's cost stays bounded.
MAX_PASSED_OVER = 16
# Requests that wait for the store and are looked past in one step, for the same reason.
MAX_AWAITING_STORE = 32


class BatchScheduler:
    """Owns the running requests, their blocks and their slots.

    It plans step k + 1 while step k may still be computed: tokens that step k samples count as
    known but unresolved. Batches must be computed in the order in which they were planned, but for
    overtakers, which use no block that the step they pass writes to.
    A step with guesses is the exception: what comes after it depends on how many of them hold.
    tiers: what keeps blocks beyond the device. speculation: who guesses. can_pause: whether a step
    under way can let others pass.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        queue: AdmissionQueue,
        allocator: BlockAllocator,
        tiers: TierSetup,
        speculation: Speculation,
        *,
        can_pause: bool = False,
    ) -> None:
        self.speculation = speculation
        self.totals = SchedulerTotals()
        self.overtaking = Overtaking(config, can_pause=can_pause)
        self._config = config
        self._queue = queue
        self._allocator = allocator
        self._memory = RequestMemory(config, allocator)
        self.tiers = BlockTiers(config, allocator=allocator, memory=self._memory, setup=tiers)
        self._running: dict[RequestState, None] = {}
        self._step = 0
        self._takes_newcomers = True

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
        budget = self._config.max_num_batched_tokens
        plan = StepPlan(budget, self._config.max_prefill_tokens or budget)
        preemptions_before = self.totals.preemptions
        if self._allocator.num_free < self._config.watermark_blocks:
            self.totals.low_watermark_steps += 1
        self.tiers.begin(self._step + 1)
        num_moves = len(self._memory.moves)
        for request in self.tiers.handoffs.plan(step=self._step + 1):
            self.park(request)
        if len(self._memory.moves) > num_moves:
            # Alone: another engine waits for these blocks, and a step may take long.
            return self._seal(plan)
        self.tiers.look_ahead(self._queue, now)
        prefills = self._plan_decodes(plan)
        self._plan_prefills(plan, prefills)
        if self.totals.preemptions > preemptions_before:
            plan.drop_preempted()
        for request, count in plan.rows():
            if count > 1:
                self._publish(request, request.num_planned + count)
        # After a preemption nobody comes in: it would take the room that was just made.
        self._takes_newcomers = self.totals.preemptions == preemptions_before
        if self._takes_newcomers and not self._defers(plan, now):
            self._plan_admissions(plan, now)
        self._make_way(plan, now)
        plan_guesses(plan, self.speculation, self._memory)
        if not len(plan) and not self._memory.moves:
            return None
        return self._seal(plan)

    def next_overtakers(
        self, under_way: StepInFlight, now: float, hold: Callable[[], bool]
    ) -> Sequence[PlannedStep]:
        """Plan prompts to be computed between the layers of the step under way, if any may be.

        Each fills the processor by itself; together they have no more tokens than one step may
        have. hold: asked before anything is planned whether the step under way waits for them.
        """
        if not self._takes_newcomers:
            return ()
        num_waiting = len(self._queue)
        budget = self.overtaking.budget(under_way, self._running, num_waiting=num_waiting)
        if not budget or not hold():
            return ()
        self.overtaking.is_deferring = False
        comes_in = self.overtaking.admission_past(under_way.planned)
        passing: list[PlannedStep] = []
        while (plan := self.overtaking.next_plan(budget)) is not None:
            self._plan_admissions(plan, now, comes_in)
            if not len(plan):
                break
            self.totals.overtaking_prefills += len(plan)
            budget -= plan.num_tokens
            passing.append(self._seal(plan))
            if self.num_prompt_tokens_left():
                break
        return passing

    def _seal(self, plan: StepPlan) -> PlannedStep:
        moves = self._memory.take_moves()
        self.totals.copied_blocks = self._memory.num_copied_blocks
        self._step += 1
        planned = plan.seal(self._step, self._memory.tables, self._config.block_size, moves)
        self.totals.computed_prompt_tokens += planned.num_prompt_tokens
        return planned

    def verify(self, request: RequestState, draft: Sequence[int], sampled: Sequence[int]) -> int:
        """Of a computed step's guesses those that hold; nothing is left of the others."""
        num_accepted = self.speculation.verify(request, draft, sampled)
        num_rejected = len(draft) - num_accepted
        request.num_unresolved -= num_rejected
        request.num_planned -= num_rejected
        self._memory.shrink(request)
        return num_accepted

    def append_token(self, request: RequestState, token_id: int) -> None:
        """A sampled token of a computed step becomes known."""
        request.num_unresolved -= 1
        request.tokens.append(token_id)
        self.totals.generated_tokens += 1
        if request.slot is None:
            self._queue.note_token()
        elif len(request.tokens) // self._config.block_size > request.num_published:
            self._publish(request, request.num_planned)

    def park(self, request: RequestState) -> None:
        """Its choice gives back all it has, but is not over.

        A beam ended without a branch, or the rest of its request is computed elsewhere.
        """
        if request.slot is None:
            self._queue.remove(request)
        else:
            self._release(request)
        self.tiers.forget(request)
        request.is_parked = True
        request.is_held = False
        request.num_unresolved = 0

    def fork(self, request: RequestState, source: RequestState, now: float) -> None:
        """A parked choice goes on from all that `source` knows, with its blocks if it runs."""
        assert request.is_parked
        request.is_parked = False
        request.tokens = list(source.tokens)
        request.names = list(source.names)
        request.num_unresolved = source.num_unresolved
        request.num_cached_tokens = source.num_cached_tokens
        request.mark(scheduled_at=now)
        if source.is_running and self._memory.tables.num_free_slots:
            self._running[request] = None
            self._memory.start(request, self._memory.all_of(source))
            self.totals.forks += 1
        else:
            self._queue.readmit(request)

    def finish(self, request: RequestState, reason: FinishReason, now: float) -> None:
        """End a request wherever it is; its blocks can be handed out at once.

        A batch in flight may still hold a row of it: batches are computed in order, so that row
        writes before anything planned later writes or reads the same blocks.
        """
        assert request.finish_reason is None, "a request ends once"
        unwanted = self.tiers.ending(request, now)
        self.speculation.forget(request)
        if request.is_parked:
            request.is_parked = False
        elif request.slot is None:
            self._queue.remove(request)
        else:
            self._release(request)
            self._allocator.discard(unwanted)
        request.finish_reason = reason
        request.siblings = ()
        request.mark(finished_at=now)
        self.totals.count_end(reason)

    def check(self) -> None:
        """Assert every invariant of queue, running requests, tables and allocator."""
        self._queue.check()
        self._memory.check(tuple(self._running))
        self.tiers.check()
        for request in self._running:
            assert request.finish_reason is None, "an ended request is running"
            assert request.num_planned <= len(request.tokens) + request.num_unresolved

    def num_unfilled_slots(self) -> int:
        """Slots of held blocks that hold no token."""
        return sum(self._memory.num_unfilled_slots(request) for request in self._running)

    def num_prompt_tokens_left(self) -> int:
        """Prompt tokens of running requests that no step has taken yet."""
        return sum(max(0, each.num_prompt_tokens - each.num_planned) for each in self._running)

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
                has_room = request.num_planned < len(request.blocks) * block_size
                if (has_room and not request.has_shared_tail) or self._grow(request, 1):
                    plan.add(request, 1)
            elif num_missing:
                prefills.append(request)
        return prefills

    def _plan_prefills(self, plan: StepPlan, prefills: list[RequestState]) -> None:
        for request in prefills:
            if request.slot is None:
                continue
            if not plan.takes_prompts:
                return
            count = min(request.num_missing, plan.budget_left, self._config.chunk_tokens)
            if self._grow(request, count):
                plan.add(request, count)

    def _plan_admissions(
        self,
        plan: StepPlan,
        now: float,
        comes_in: Callable[[RequestState, FoundPrefix], bool] = lambda _request, _found: True,
    ) -> None:
        """Admit requests in their order, up to the first one that does not come in at all."""
        if not len(self._queue) or not self._memory.tables.num_free_slots:
            return
        overtaken: list[RequestState] = []
        num_awaiting_store = 0
        for request in self._queue.in_order(now):
            if not plan.takes_prompts or not self._memory.tables.num_free_slots:
                break
            found = self._memory.match(request)
            if not comes_in(request, found):
                break
            if self._waits_for_block(request, found, now):
                continue
            if self.tiers.waits(request, found, now):
                num_awaiting_store += 1
                if num_awaiting_store >= MAX_AWAITING_STORE:
                    break
                continue
            if not self._memory.fits(request, found, is_alone=not self._running):
                if request.num_overtakes >= MAX_OVERTAKES or len(overtaken) >= MAX_PASSED_OVER:
                    break
                overtaken.append(request)
                continue
            self._let_in(request, found, plan, now, overtaken)

    def _let_in(
        self,
        request: RequestState,
        found: FoundPrefix,
        plan: StepPlan,
        now: float,
        overtaken: Sequence[RequestState],
    ) -> None:
        for passed in overtaken:
            passed.num_overtakes += 1
        self._start(request, found, now)
        count = min(request.num_missing, plan.budget_left, self._config.chunk_tokens)
        self._memory.grow(request, count)
        plan.add(request, count)
        self._publish(request, request.num_planned + count)

    # Admission.

    def _defers(self, plan: StepPlan, now: float) -> bool:
        # One alone had better come in with the outputs, whose weights are read anyway.
        have_room = len(self._queue) > 1 and self._memory.tables.num_free_slots > 1
        line = self._queue.in_order(now) if have_room else ()
        return self.overtaking.defers(plan, line, self._memory.match)

    def _waits_for_token(self, request: RequestState) -> bool:
        return request.num_unresolved > 0 and request.origin.sampling.needs_last_token

    def _waits_for_block(self, request: RequestState, found: FoundPrefix, now: float) -> bool:
        """Whether its next block, or its own last token, is being computed; not for too long."""
        if request.num_unresolved:
            return True
        if not found.next_is_pending:
            return False
        if request.pending_since is None:
            request.pending_since = now
        return now - request.pending_since < self._config.pending_block_timeout_s

    def _start(self, request: RequestState, found: FoundPrefix, now: float) -> None:
        """It runs from now on, with the blocks that were found."""
        self._queue.remove(request)
        self._running[request] = None
        self._memory.start(request, found)
        self.totals.forks += found.source is not None
        self.tiers.load(request, found, now)
        request.pending_since = None
        if request.timeline.scheduled_at is None:
            request.num_cached_tokens = min(request.num_planned, request.num_prompt_tokens)
            self.totals.prompt_tokens += request.num_prompt_tokens
            self.totals.hit_tokens += request.num_cached_tokens
        request.mark(scheduled_at=now)

    def _publish(self, request: RequestState, num_planned: int) -> None:
        num_before = request.num_published
        self._memory.publish(request, num_planned)
        if request.num_published > num_before:
            self.tiers.note_published(request, num_before)

    # Preemption.

    def _make_way(self, plan: StepPlan, now: float) -> None:
        """Beams that only wait for a sibling without room give up theirs, one after the other.

        Otherwise nothing would ever run again: the sibling waits for their blocks, they for it.
        """
        while not len(plan) and self._running and len(self._queue):
            if not all(request.is_held for request in self._running):
                return
            self._preempt(self._victim())
            self._plan_admissions(plan, now)

    def _victim(self) -> RequestState:
        return choose_victim(
            self._running,
            block_size=self._config.block_size,
            is_shared=lambda block: self._allocator.ref_count(block) > 1,
            max_preemptions=self._config.max_preemptions,
        )

    def _grow(self, request: RequestState, num_tokens: int) -> bool:
        """Make room for more tokens, preempting others if need be; False if it lost its place."""
        while not self._memory.has_room(request, num_tokens):
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        self._memory.grow(request, num_tokens)
        return True

    def _preempt(self, request: RequestState) -> None:
        """Take its blocks and its slot; its tokens stay, so nothing but time is lost."""
        self.totals.preemptions += 1
        self.totals.discarded_tokens += request.num_planned - self.tiers.save(request)
        request.num_preemptions += 1
        self._release(request)
        self._queue.readmit(request)

    def _release(self, request: RequestState) -> None:
        self._memory.release(request)
        del self._running[request]
