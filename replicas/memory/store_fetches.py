"""Asks the store for what a waiting request is missing, and fetches it if that is the cheaper way.

The request waits in the line while others run; first for how much the store has, then for the
blocks. Both together end at a deadline, after which it computes them itself: a store that is slow
is a miss (DESIGN 5 and 6). What arrives later still serves whoever comes next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvstore.break_even import Estimate
from replicas.memory.block_mover import (
    BlockMover,
    FetchDone,
    FetchJob,
    LookedUp,
    LookUpJob,
)
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.move_costs import MoveCosts
from replicas.memory.tier_stats import TierTotals
from replicas.request_state import RequestState

# A fetch that a recompute would beat is waited for no longer than this anyway.
MIN_FETCH_TIMEOUT_S = 0.02


@dataclass(slots=True)
class _Question:
    """One prefix that was asked for. first_block: of the request; blocks: those that are missing.

    slots: where its blocks go, once the fetch was begun. is_over: nobody waits for it any more.
    """

    blocks: tuple[HostBlock, ...]
    first_block: int
    deadline: float
    job_id: int
    slots: list[int] = field(default_factory=list)
    is_over: bool = False


@dataclass(slots=True)
class _Asker:
    """A waiting request. num_fetched_tokens: fetched for it and not used yet. pins: their slots.

    is_own: the question was about its own tokens, all of them.
    """

    question: _Question
    is_own: bool
    num_fetched_tokens: int = 0
    pins: list[int] = field(default_factory=list)


class StoreFetches:
    """Questions and fetches under way, and which waiting request each of them is for."""

    def __init__(
        self,
        *,
        tier: HostTier,
        mover: BlockMover,
        costs: MoveCosts,
        totals: TierTotals,
        block_size: int,
        timeout_s: float,
    ) -> None:
        self._tier = tier
        self._mover = mover
        self._costs = costs
        self._totals = totals
        self._block_size = block_size
        self._timeout_s = timeout_s
        self._askers: dict[RequestState, _Asker] = {}
        self._by_job: dict[int, _Question] = {}
        self._by_name: dict[bytes, _Question] = {}
        self._num_jobs = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nobody waits."""
        return not self._by_job and not self._askers

    def has_asked(self, request: RequestState) -> bool:
        """Whether the store was asked for it since it last ran."""
        return request in self._askers

    def waits(self, request: RequestState, num_found_blocks: Callable[[], int], now: float) -> bool:
        """Whether it should wait for the store; asks it if that is worth an answer.

        num_found_blocks: leading full blocks that device or host memory has; called if need be.
        """
        asker = self._askers.get(request)
        if asker is not None and not asker.question.is_over:
            if now < asker.question.deadline:
                return True
            self._give_up(asker.question)
        # One that waited for another's question may lack what lies beyond the prefix they share.
        if asker is not None and asker.is_own:
            return False
        return self._ask(request, asker, num_found_blocks(), now)

    def looked_up(self, answer: LookedUp, now: float) -> None:
        """The store has said how much it has."""
        self._costs.note_store(answer.speeds, has_fetched=False)
        question = self._by_job.pop(answer.job_id)
        if question.is_over or not answer.num_found:
            self._end(question)
            return
        blocks = question.blocks[: answer.num_found]
        stop = (question.first_block + len(blocks)) * self._block_size
        cached = question.first_block * self._block_size
        if not self._should_fetch(stop, cached):
            self._totals.add("declined_fetches")
            self._end(question)
            return
        self._fetch(question, blocks, now)

    def fetched(self, answer: FetchDone) -> list[bytes]:
        """Blocks have come, or have not: those that are whole can be found from now on; names."""
        self._costs.note_store(answer.speeds, has_fetched=True)
        question = self._by_job.pop(answer.job_id)
        whole = question.slots[: answer.num_fetched]
        for slot in whole:
            self._tier.fill(slot)
        for slot in question.slots[answer.num_fetched :]:
            self._tier.drop(slot)
        self._tier.touch(whole)
        self._totals.add("fetched_blocks", len(whole))
        self._totals.add("fetch_s", answer.seconds)
        self._totals.add("short_fetches", len(whole) < len(question.slots))
        question.slots = []
        for asker in self._askers.values():
            if asker.question is question:
                asker.num_fetched_tokens += len(whole) * self._block_size
                self._hold(asker, whole)
        self._end(question)
        return [block.name for block in question.blocks[: len(whole)]]

    def forget(self, request: RequestState) -> int:
        """It started or ended; how many tokens were fetched for it."""
        asker = self._askers.pop(request, None)
        if asker is None:
            return 0
        for slot in asker.pins:
            self._tier.unpin(slot)
        return asker.num_fetched_tokens

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        filling = [slot for question in self._by_job.values() for slot in question.slots]
        return filling + [slot for asker in self._askers.values() for slot in asker.pins]

    def _ask(
        self, request: RequestState, asker: _Asker | None, num_found_blocks: int, now: float
    ) -> bool:
        names = request.full_block_names(self._block_size, len(request.tokens) - 1)
        if num_found_blocks >= len(names) or not self._is_worth_asking(
            len(names) * self._block_size, num_found_blocks * self._block_size
        ):
            return False
        if asker is not None and asker.question.first_block >= num_found_blocks:
            return False
        first_name = names[num_found_blocks]
        question = self._by_name.get(first_name)
        is_own = question is None
        if question is None:
            question = self._new_question(request, num_found_blocks, names, now)
        if asker is None:
            self._askers[request] = _Asker(question, is_own)
        else:
            asker.question, asker.is_own = question, is_own
        return True

    def _new_question(
        self, request: RequestState, first_block: int, names: Sequence[bytes], now: float
    ) -> _Question:
        size = self._block_size
        blocks = tuple(
            HostBlock(
                names[index],
                request.parent_name(index),
                tuple(request.tokens[index * size : (index + 1) * size]),
            )
            for index in range(first_block, len(names))
        )
        question = _Question(blocks, first_block, now + self._timeout_s, self._next_job_id())
        self._by_job[question.job_id] = question
        self._by_name[blocks[0].name] = question
        self._totals.add("lookups")
        self._mover.take(LookUpJob(question.job_id, tuple(block.name for block in blocks)))
        return question

    def _fetch(self, question: _Question, blocks: Sequence[HostBlock], now: float) -> None:
        reserved = self._reserve(blocks)
        timeout_s = question.deadline - now
        if not reserved or timeout_s <= 0.0:
            for block in reserved:
                self._tier.drop(block.slot)
            self._end(question)
            return
        start = question.first_block * self._block_size
        stop = start + len(reserved) * self._block_size
        recompute_s = self._costs.recompute_s(stop, num_cached_tokens=start)
        if recompute_s > 0.0:
            timeout_s = min(timeout_s, max(recompute_s, MIN_FETCH_TIMEOUT_S))
        question.job_id = self._next_job_id()
        question.slots = [block.slot for block in reserved]
        self._by_job[question.job_id] = question
        self._totals.add("fetches")
        self._mover.take(FetchJob(question.job_id, tuple(reserved), timeout_s))

    def _reserve(self, blocks: Sequence[HostBlock]) -> list[HostBlock]:
        """Slots for the first blocks, up to one that is here by now or finds no room."""
        reserved: list[HostBlock] = []
        for block in blocks:
            if block.name in self._tier or self._tier.num_pinned >= self._tier.num_slots * 3 // 4:
                break
            slot = self._tier.reserve(block)
            if slot is None:
                break
            reserved.append(self._tier.block(slot))
        return reserved

    def _should_fetch(self, stop: int, num_cached_tokens: int) -> bool:
        if not self._costs.knows_prefill:
            return True
        estimate = self._costs.fetch(stop, num_cached_tokens=num_cached_tokens)
        self._count(estimate)
        return estimate.choice == "move"

    def _count(self, estimate: Estimate) -> None:
        self._totals.add("fetch_s_estimated", estimate.move_s)
        self._totals.add("fetch_recompute_s_estimated", estimate.recompute_s)

    def _is_worth_asking(self, stop: int, num_cached_tokens: int) -> bool:
        """Not for what takes less time to compute than to ask for."""
        if not self._costs.knows_prefill:
            return True
        recompute_s = self._costs.recompute_s(stop, num_cached_tokens=num_cached_tokens)
        return recompute_s > 2.0 * self._costs.round_trip_s

    def _hold(self, asker: _Asker, slots: Sequence[int]) -> None:
        for slot in slots:
            self._tier.pin(slot)
            asker.pins.append(slot)

    def _give_up(self, question: _Question) -> None:
        self._totals.add("lookups_late")
        self._end(question)

    def _end(self, question: _Question) -> None:
        question.is_over = True
        name = question.blocks[0].name
        if self._by_name.get(name) is question:
            del self._by_name[name]

    def _next_job_id(self) -> int:
        self._num_jobs += 1
        return self._num_jobs
