"""Adopts what a prefill engine published: reads the table, fetches the blocks, then lets it start.

Nothing in a table is believed. Its generation, tokens, seed and block names must be those of the
request itself, and every block is verified as it comes in; the rest is computed here, as for any
request (DESIGN 5). The request waits in the line meanwhile, until its deadline at most.
"""

from dataclasses import dataclass, field

from kvstore.handoff_table import HandoffTable, hash_of_tokens, table_key, tail_name
from replicas.handoff import HandoffFault, HandoffIn, HandoffNews
from replicas.memory.block_mover import BlockMover
from replicas.memory.handoff_jobs import Adopted, AdoptJob, ReadTableJob, TableRead
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.request_memory import RequestMemory
from replicas.memory.swapping import Swapping
from replicas.memory.tier_stats import TierTotals
from replicas.request_state import RequestState


@dataclass(slots=True)
class _In:
    """One hand-off under way. held: pinned slots of blocks that host memory has already.

    coming: slots that are being filled, the tail last. is_over: nobody waits for it any more.
    """

    request: RequestState
    handoff: HandoffIn
    key: bytes
    arrived_at: float
    num_tokens: int = 0
    held: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    is_reading: bool = False
    is_short: bool = False
    is_over: bool = False

    @property
    def deadline(self) -> float:
        """When the request goes on without."""
        return self.arrived_at + self.handoff.deadline_s


class HandoffsIn:
    """The hand-offs that this engine computes the outputs of."""

    def __init__(
        self,
        *,
        memory: RequestMemory,
        swapping: Swapping,
        tier: HostTier,
        mover: BlockMover,
        totals: TierTotals,
        block_size: int,
    ) -> None:
        self._memory = memory
        self._swapping = swapping
        self._tier = tier
        self._mover = mover
        self._totals = totals
        self._block_size = block_size
        self._waiting: dict[RequestState, _In] = {}
        self._by_key: dict[bytes, _In] = {}
        self._news: list[tuple[RequestState, HandoffNews]] = []

    def begin(self, request: RequestState, handoff: HandoffIn, now: float) -> None:
        """A request was admitted whose prompt was computed elsewhere."""
        key = table_key(request.origin.request_id, handoff.generation)
        one = self._waiting[request] = _In(request, handoff, key, now)
        if key in self._by_key:
            self._refuse(one, "stale")
        elif not self._mover.has_store:
            self._refuse(one, "unavailable")
        elif not self._tier.num_slots:
            self._refuse(one, "no_room")
        else:
            self._by_key[key] = one

    def knows(self, key: bytes) -> bool:
        """Whether one with this key is under way."""
        return key in self._by_key

    def read(self, key: bytes) -> None:
        """Read the table of one that was begun, now that nobody else fetches for it."""
        one = self._by_key.get(key)
        if one is not None and not one.is_reading:
            one.is_reading = True
            self._mover.take(ReadTableJob(key, one.handoff.deadline_s))

    def waits(self, request: RequestState, now: float) -> bool:
        """Whether a waiting request had better wait on, for the blocks of its hand-off."""
        one = self._waiting.get(request)
        if one is None:
            return False
        if now < one.deadline:
            return True
        self._refuse(one, "expired")
        return False

    def table_read(self, answer: TableRead, now: float) -> None:
        """The table is here, or is not."""
        one = self._by_key[answer.key]
        fault, table = answer.fault, answer.table
        if table is not None and not one.is_over:
            fault = self._why_not(one.request, one.handoff, table)
        if one.is_over or fault is not None or table is None:
            del self._by_key[answer.key]
            if not one.is_over:
                self._refuse(one, fault or "absent")
            return
        blocks = self._reserve(one, table)
        if not blocks and one.is_short:
            del self._by_key[answer.key]
            self._unpin(one)
            self._refuse(one, "no_room")
            return
        timeout_s = max(0.0, one.deadline - now)
        self._mover.take(AdoptJob(answer.key, table, tuple(blocks), timeout_s))

    def adopted(self, answer: Adopted, now: float) -> None:
        """Blocks have come, or have not: what is whole will be used when the request starts."""
        one = self._by_key.pop(answer.key)
        whole, rest = one.coming[: answer.num_whole], one.coming[answer.num_whole :]
        for slot in whole:
            self._tier.pin(slot)
            self._tier.fill(slot)
        for slot in rest:
            self._tier.drop(slot)
        one.coming = []
        size = self._block_size
        has_tail = bool(whole) and len(self._tier.block(whole[-1]).token_ids) < size
        tail = whole.pop() if has_tail else None
        one.held += whole
        self._totals.add("handoff_adopted_bytes", answer.num_bytes)
        if one.is_over:
            self._unpin(one)
            if tail is not None:
                self._tier.drop(tail)
            return
        held, one.held = one.held, []
        start = one.num_tokens // size * size
        self._swapping.keep(one.request, held, tail, tail_start=start, tail_stop=one.num_tokens)
        fault: HandoffFault | None = answer.fault or ("no_room" if one.is_short else None)
        self._settle(one, fault, answer, now)

    def forget(self, request: RequestState) -> None:
        """It started or ended."""
        one = self._waiting.pop(request, None)
        if one is not None:
            one.is_over = True

    def take_news(self) -> list[tuple[RequestState, HandoffNews]]:
        """What has come about since the last call."""
        news, self._news = self._news, []
        return news

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        return [slot for one in self._by_key.values() for slot in (*one.held, *one.coming)]

    def _why_not(
        self, request: RequestState, handoff: HandoffIn, table: HandoffTable
    ) -> HandoffFault | None:
        """Why a table is not of this try of this very request; None if it is."""
        num_tokens, known = table.num_tokens, request.tokens
        num_told = num_tokens + len(table.token_ids)
        is_same = (
            table.request_id == request.origin.request_id
            and table.generation == handoff.generation
            and 0 < num_tokens < num_told <= len(known)
            and tuple(known[num_tokens:num_told]) == table.token_ids
            and table.token_hash == hash_of_tokens(known[:num_tokens])
            and table.seed == request.origin.sampling.seed
            and table.position == num_told
        )
        if not is_same:
            return "stale"
        names = tuple(request.full_block_names(self._block_size, num_tokens))
        is_fitting = table.names == names and table.num_tail_tokens == num_tokens % self._block_size
        return None if is_fitting else "incompatible"

    def _reserve(self, one: _In, table: HandoffTable) -> list[HostBlock]:
        """Slots for what neither device nor host memory has, as far as there is room."""
        request, size = one.request, self._block_size
        one.num_tokens = table.num_tokens
        first = self._memory.match(request).num_tokens // size
        num_full = len(table.names)
        one.held = self._swapping.find(request, first)[: max(0, num_full - first)]
        for held in one.held:
            self._tier.pin(held)
        blocks: list[HostBlock] = []
        num_blocks = num_full + bool(table.num_tail_tokens)
        for index in range(first + len(one.held), num_blocks):
            tokens = tuple(request.tokens[index * size : min((index + 1) * size, one.num_tokens)])
            name = (
                table.names[index]
                if index < num_full
                else tail_name(request.origin.request_id, one.handoff.generation)
            )
            block = HostBlock(name, request.parent_name(index), tokens)
            slot = None if name in self._tier else self._tier.reserve(block)
            if slot is None:
                one.is_short = True
                break
            one.coming.append(slot)
            blocks.append(self._tier.block(slot))
        return blocks

    def _settle(self, one: _In, fault: HandoffFault | None, answer: Adopted, now: float) -> None:
        if fault is not None:
            self._refuse(one, fault)
            return
        self.forget(one.request)
        seconds = now - one.arrived_at
        self._totals.add("adopted_handoffs")
        self._totals.add("handoff_adopt_s", seconds)
        news = HandoffNews(
            one.handoff.generation,
            "adopted",
            num_tokens=one.num_tokens,
            num_bytes=answer.num_bytes,
            seconds=seconds,
            transport=answer.transport,
        )
        self._news.append((one.request, news))

    def _refuse(self, one: _In, fault: HandoffFault) -> None:
        self.forget(one.request)
        self._totals.add("refused_handoffs")
        self._news.append((one.request, HandoffNews(one.handoff.generation, fault)))

    def _unpin(self, one: _In) -> None:
        for slot in one.held:
            self._tier.unpin(slot)
        one.held = []
