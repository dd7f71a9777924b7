"""The hand-offs of one engine, of both directions, as scheduler and engine see them."""

from kvstore.handoff_table import table_key
from replicas.batch import BlockMove
from replicas.handoff import HandoffIn, HandoffOut
from replicas.memory.block_mover import BlockMover
from replicas.memory.handoff_jobs import Adopted, HandoffAnswer, Offered, TableRead, Withdrawn
from replicas.memory.handoff_prefetches import HandoffPrefetches
from replicas.memory.handoffs_in import HandoffsIn
from replicas.memory.handoffs_out import HandoffsOut, OutNews
from replicas.memory.host_tier import HostTier
from replicas.memory.request_memory import RequestMemory
from replicas.memory.swapping import Swapping
from replicas.memory.tier_stats import TierTotals
from replicas.request import EngineRequest
from replicas.request_state import RequestState


class Handoffs:
    """Requests whose other part another engine computes (DESIGN 5)."""

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
        self._out = HandoffsOut(tier=tier, mover=mover, totals=totals, block_size=block_size)
        self._prefetches = HandoffPrefetches(
            tier=tier, mover=mover, totals=totals, block_size=block_size
        )
        self._in = HandoffsIn(
            memory=memory,
            swapping=swapping,
            tier=tier,
            mover=mover,
            totals=totals,
            block_size=block_size,
        )

    def arrived(self, request: RequestState, now: float) -> None:
        """A request was admitted; most have no hand-off."""
        match request.origin.handoff:
            case HandoffOut() as handoff:
                self._out.begin(request, handoff, now)
            case HandoffIn() as handoff:
                self._in.begin(request, handoff, now)
                key = table_key(request.origin.request_id, handoff.generation)
                if not self._prefetches.stop(key):
                    self._in.read(key)

    def prefetch(self, request: EngineRequest, now: float) -> None:
        """A request will be handed over here, once its prompt is computed."""
        handoff = request.handoff
        if not isinstance(handoff, HandoffIn):
            return
        if not self._in.knows(table_key(request.request_id, handoff.generation)):
            self._prefetches.begin(request, handoff, now)

    @property
    def is_polling(self) -> bool:
        """Whether time alone brings something to do."""
        return self._prefetches.has_any

    def plan(self, *, step: int) -> list[RequestState]:
        """Copy out what is computed, first thing in step `step`; who needs no blocks any more."""
        moves: list[BlockMove] = self._memory.moves
        return self._out.plan(moves, step=step)

    def waits(self, request: RequestState, now: float) -> bool:
        """Whether a waiting request had better wait on, for the blocks of its hand-off."""
        return self._in.waits(request, now)

    def note_step(self, now: float) -> None:
        """A step was computed, and with it all that it copied out."""
        self._out.send(now)

    def take_answer(self, answer: HandoffAnswer, now: float) -> None:
        """The mover has done something."""
        match answer:
            case Offered():
                self._out.offered(answer, now)
            case Withdrawn():
                self._out.withdrawn(answer)
            case TableRead(key, is_early=True):
                self._prefetches.table_read(answer, now)
                self._go_on(key)
            case Adopted(key, is_early=True):
                self._prefetches.adopted(answer)
                self._go_on(key)
            case TableRead(key):
                self._in.table_read(answer, now)
                # It has pinned what came early by now, or does without.
                if not self._prefetches.stop(key):
                    self._prefetches.drop(key)
            case Adopted():
                self._in.adopted(answer, now)

    def take_news(self, now: float) -> list[OutNews]:
        """What there is to tell since the last call, once in every step."""
        # What host memory had already needs no step to be copied out.
        self._out.send(now)
        self._prefetches.poll(now)
        adopted = [OutNews(request, news, is_over=False) for request, news in self._in.take_news()]
        return adopted + self._out.take_news(now)

    def end(self, request: RequestState) -> None:
        """A request ended, for whatever reason."""
        self._in.forget(request)
        self._out.end(request)

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        return [*self._in.pins(), *self._out.pins(), *self._prefetches.pins()]

    def _go_on(self, key: bytes) -> None:
        """The request itself may have come while blocks were still being fetched for it."""
        if not self._prefetches.is_busy(key):
            self._in.read(key)
