"""Hands a computed prompt over: copies blocks out as they are computed, publishes the table last.

Every block leaves as soon as a step has computed it, so that only the last chunk's is waited for
(DistServe, Mooncake; lecture 11, 11.8). The request gives up its place on the device with its first
token; its slots in host memory stay until the other side has read them, or until the deadline.
"""

from collections import deque
from dataclasses import dataclass, field

from kvstore.handoff_table import HandoffTable, hash_of_tokens, table_key, tail_name
from replicas.batch import BlockMove, CopyOut
from replicas.handoff import HandoffFault, HandoffNews, HandoffOut
from replicas.memory.block_mover import BlockMover
from replicas.memory.handoff_jobs import Offered, OfferJob, WithdrawJob, Withdrawn
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.tier_stats import TierTotals
from replicas.request_state import RequestState

_LEAST_TTL_S = 0.001


@dataclass(slots=True)
class _Out:
    """One hand-off. num_tokens: whose K and V are handed over. slots: pinned, in block order.

    num_unsent: of the last slots, those that no job has named yet. is_sent: the last job is under
    way. is_told: the news of how it ended is out.
    """

    request: RequestState
    handoff: HandoffOut
    key: bytes
    deadline: float
    num_tokens: int
    slots: list[int] = field(default_factory=list)
    unsent: deque[int] = field(default_factory=deque)
    fault: HandoffFault | None = None
    is_copied: bool = False
    has_offers: bool = False
    is_sent: bool = False
    is_told: bool = False

    @property
    def is_sampled(self) -> bool:
        """Whether the token after the prompt is known."""
        return len(self.request.tokens) > self.num_tokens


@dataclass(frozen=True, slots=True)
class OutNews:
    """What to tell of a hand-off. is_over: the request ends with it."""

    request: RequestState
    news: HandoffNews
    is_over: bool


class HandoffsOut:
    """The hand-offs that this engine computes the prompts of."""

    def __init__(
        self, *, tier: HostTier, mover: BlockMover, totals: TierTotals, block_size: int
    ) -> None:
        self._tier = tier
        self._mover = mover
        self._totals = totals
        self._block_size = block_size
        self._outs: dict[RequestState, _Out] = {}
        # Those whose slots somebody may still read, ended ones among them.
        self._by_key: dict[bytes, _Out] = {}
        self._news: list[OutNews] = []

    def begin(self, request: RequestState, handoff: HandoffOut, now: float) -> None:
        """A request was admitted whose output is computed elsewhere."""
        if not request.goes_on_elsewhere:
            return
        key = table_key(request.origin.request_id, handoff.generation)
        out = _Out(request, handoff, key, now + handoff.deadline_s, len(request.tokens))
        self._outs[request] = out
        if key in self._by_key:
            out.fault = "stale"
        elif not self._mover.has_store:
            out.fault = "unavailable"
        elif not self._tier.num_slots:
            out.fault = "no_room"
        else:
            self._by_key[key] = out

    def plan(self, moves: list[BlockMove], *, step: int) -> list[RequestState]:
        """Copy out what earlier steps compute, as moves of step `step`.

        Returns the requests that need their blocks no more: all is copied, their token is known.
        """
        done: list[RequestState] = []
        for request, out in self._outs.items():
            if out.fault is None and not out.is_copied and request.is_running:
                self._copy(out, moves, step)
            is_settled = out.is_copied or out.fault is not None
            is_known = out.is_sampled and not request.num_unresolved
            if is_settled and is_known and not request.is_parked:
                done.append(request)
        return done

    def send(self, now: float) -> None:
        """Offer what was copied by computed steps; with the last of it goes the table."""
        for out in self._outs.values():
            if out.fault is not None or out.is_sent:
                continue
            quiet: list[int] = []
            while out.unsent and self._tier.is_quiet(out.unsent[0]):
                quiet.append(out.unsent.popleft())
            is_last = out.is_copied and not out.unsent and out.is_sampled
            if quiet or is_last:
                self._offer(out, quiet, is_last, now)

    def offered(self, answer: Offered, now: float) -> None:
        """Blocks can be read by the other side, or cannot; the last answer is for the table."""
        out = self._by_key.get(answer.key)
        if out is None or out.request not in self._outs or out.is_told:
            return
        if answer.fault is not None:
            out.fault = answer.fault
        elif answer.is_published:
            sampled_at = out.request.timeline.first_token_at
            seconds = now - sampled_at if sampled_at is not None else 0.0
            self._totals.add("published_handoffs")
            self._totals.add("handoff_publish_s", seconds)
            self._tell(out, answer, seconds)

    def withdrawn(self, answer: Withdrawn) -> None:
        """Nobody reads the slots of an ended hand-off any more."""
        out = self._by_key.pop(answer.key, None)
        if out is not None:
            self._unpin(out)

    def end(self, request: RequestState) -> None:
        """The request ended, for whatever reason."""
        out = self._outs.pop(request, None)
        if out is None or self._by_key.get(out.key) is not out:
            return
        if out.has_offers:
            self._mover.take(WithdrawJob(out.key))
        else:
            del self._by_key[out.key]
            self._unpin(out)

    def take_news(self, now: float) -> list[OutNews]:
        """What has come about since the last call; a fault is told once the first token is."""
        for out in self._outs.values():
            if now >= out.deadline:
                out.fault = "expired"
            if out.fault is not None and out.is_sampled and not out.request.num_unresolved:
                self._totals.add("unpublished_handoffs", not out.is_told)
                news = HandoffNews(out.handoff.generation, out.fault)
                self._news.append(OutNews(out.request, news, is_over=True))
        news_of_all, self._news = self._news, []
        return news_of_all

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        return [slot for out in self._by_key.values() for slot in out.slots]

    def _copy(self, out: _Out, moves: list[BlockMove], step: int) -> None:
        size = self._block_size
        num_planned = min(out.request.num_planned, out.num_tokens)
        num_blocks = num_planned // size
        if num_planned == out.num_tokens:
            num_blocks = -(-num_planned // size)
            out.is_copied = True
        for index in range(len(out.slots), num_blocks):
            block = self._block(out, index)
            slot = self._tier.find(block.name, block.parent, block.token_ids)
            if slot is None:
                is_coming = block.name in self._tier
                slot = None if is_coming else self._tier.take(block, step=step)
                if slot is None:
                    out.fault = "no_room"
                    return
                moves.append(CopyOut(out.request.blocks[index], slot))
            self._tier.pin(slot)
            out.slots.append(slot)
            out.unsent.append(slot)

    def _block(self, out: _Out, index: int) -> HostBlock:
        """The index-th block of its prompt; the last may be part-filled, and has a private name."""
        request, size = out.request, self._block_size
        tokens = tuple(request.tokens[index * size : min((index + 1) * size, out.num_tokens)])
        if len(tokens) == size:
            name = request.full_block_names(size, out.num_tokens)[index]
        else:
            name = tail_name(request.origin.request_id, out.handoff.generation)
        return HostBlock(name, request.parent_name(index), tokens)

    def _offer(self, out: _Out, slots: list[int], is_last: bool, now: float) -> None:
        out.has_offers = True
        out.is_sent = is_last
        self._mover.take(
            OfferJob(
                out.key,
                tuple(self._tier.block(slot) for slot in slots),
                ttl_s=max(_LEAST_TTL_S, out.deadline - now),
                table=self._table(out, now, is_last=is_last),
                tail_name=tail_name(out.request.origin.request_id, out.handoff.generation),
                is_last=is_last,
            )
        )

    def _table(self, out: _Out, now: float, *, is_last: bool) -> HandoffTable:
        """Of what has been offered by now; without the sampled token as long as that is not all."""
        request, size = out.request, self._block_size
        num_offered = (len(out.slots) - len(out.unsent)) * size
        num_tokens = out.num_tokens if is_last else min(num_offered, out.num_tokens)
        num_tokens -= 0 if is_last else num_tokens % size
        token_ids = tuple(request.tokens[out.num_tokens :]) if is_last else ()
        return HandoffTable(
            request_id=request.origin.request_id,
            generation=out.handoff.generation,
            names=tuple(request.full_block_names(size, num_tokens)),
            num_tokens=num_tokens,
            num_tail_tokens=num_tokens % size,
            token_hash=hash_of_tokens(request.tokens[:num_tokens]),
            token_ids=token_ids,
            seed=request.origin.sampling.seed,
            position=num_tokens + len(token_ids),
            deadline_s=max(_LEAST_TTL_S, out.deadline - now),
        )

    def _tell(self, out: _Out, answer: Offered, seconds: float) -> None:
        out.is_told = True
        news = HandoffNews(
            out.handoff.generation,
            "published",
            num_tokens=out.num_tokens,
            num_bytes=answer.num_bytes,
            seconds=seconds,
            transport=answer.transport,
        )
        self._news.append(OutNews(out.request, news, is_over=False))

    def _unpin(self, out: _Out) -> None:
        size, private = self._block_size, out.num_tokens % self._block_size
        for index, slot in enumerate(out.slots):
            # Nobody else finds a tail by its private name.
            if private and index == out.num_tokens // size:
                self._tier.drop(slot)
            else:
                self._tier.unpin(slot)
        out.slots = []
