"""Lets two replicas share a request, where that is better: one computes the prompt, one the output.

The decision is router.disaggregation's. Room in the decode pool is promised before a prefill starts
(router.handoff, router.decode_credits). Everything that fails ends in the same place: the decode
side computes the prompt itself, as it would without a prefill pool.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from cluster.dispatch.dispatcher import AttemptFeed, ClusterHealth
from cluster.dispatch.serve_dispatcher import (
    ServeDispatcher,
    Trouble,
    routing_request_of,
    slo_refusal,
)
from cluster.errors import DispatchError, RequestRefused
from cluster.handoff.decode_places import DecodePlace, DecodePlaces
from cluster.handoff.pair_feed import HandoffResult, PairFeed, Pairing
from cluster.pools.pool_config import HandoffConfig
from replicas.handoff import HandoffIn, HandoffOut
from replicas.request import EngineRequest
from router.config import RouterConfig
from router.disaggregation import (
    Decision,
    DisaggregationLimits,
    Reason,
    Transfer,
    decide,
    decide_early,
)
from router.handoff import DecodeLocally, Handoff, HandoffLimits, Prefill, Reserve
from router.handoff_meter import HandoffMeter
from router.replica_status import DECODERS, EVERY_ROLE, PREFILL_ALONE, ReplicaState
from router.request_router import RequestRouter
from router.routing_policy import Unmeetable

log = logging.getLogger(__name__)

# A decode replica keeps blocks that came early for so long, in case their request does not come.
_LONGEST_EXPECTED_S = 30.0


@dataclass(frozen=True, slots=True)
class PairSettings:
    """handoff, router: the gateway's. watermark: share of blocks that the decode side keeps free.

    block_size: tokens of a block.
    """

    handoff: HandoffConfig
    router: RouterConfig
    watermark: float
    block_size: int

    @property
    def limits(self) -> DisaggregationLimits:
        """When a prompt goes to the prefill pool."""
        return DisaggregationLimits(
            mode=self.handoff.disaggregation,
            min_missing_tokens=self.handoff.min_handoff_tokens,
            interference_weight=self.handoff.interference_weight,
        )

    @property
    def handoff_limits(self) -> HandoffLimits:
        """How long each state of a hand-off may last."""
        return HandoffLimits(
            reserve_timeout_s=self.handoff.handoff_reserve_timeout_s,
            prefill_timeout_s=self.handoff.handoff_prefill_timeout_s,
            adopt_timeout_s=self.handoff.handoff_adopt_timeout_s,
            max_reservations=1,
        )


class PairDispatcher:
    """The AttemptDispatcher of a gateway that has a prefill pool.

    decisions, results: counted by reason and by what came of hand-offs. on_result: told of each.
    """

    def __init__(
        self,
        attempts: ServeDispatcher,
        *,
        router: RequestRouter,
        settings: PairSettings,
        clock: Callable[[], float],
        on_result: Callable[[HandoffResult], None] = lambda _result: None,
    ) -> None:
        self._attempts = attempts
        self._router = router
        self._settings = settings
        self._clock = clock
        self._on_result = on_result
        self._places = DecodePlaces(
            router, watermark=settings.watermark, max_in_flight=settings.handoff.max_handoffs
        )
        self._meter = HandoffMeter()
        self._drivers: set[asyncio.Task[None]] = set()
        self.decisions: Counter[Reason] = Counter()
        self.results: Counter[str] = Counter()

    async def open(
        self, request: EngineRequest, *, avoid: frozenset[str] = frozenset()
    ) -> AttemptFeed:
        """As ServeDispatcher.open, by one replica or by two."""
        decision = self._decide(request, avoid)
        self.decisions[decision.reason] += 1
        if decision.reason == "no_decode_replica":
            # A replica of the prefill pool can do all of it; better a slow answer than none.
            return await self._attempts.open(request, avoid=avoid, roles=EVERY_ROLE)
        if not decision.is_remote:
            return await self._attempts.open(request, avoid=avoid, roles=DECODERS)
        return await self._open_pair(request, avoid)

    def health(self) -> ClusterHealth:
        """What the last statuses and heartbeats say."""
        return self._attempts.health()

    def trouble(self, feed: AttemptFeed) -> Trouble | None:
        """Why an open attempt had better go on elsewhere, if another replica could take it."""
        return self._attempts.trouble(feed, roles=DECODERS)

    async def close(self) -> None:
        """Cancel what is open."""
        drivers = list(self._drivers)
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)
        await self._attempts.close()

    @property
    def num_promises(self) -> int:
        """Hand-offs whose decode replica does not count them yet."""
        return self._places.num_held

    def _decide(self, request: EngineRequest, avoid: frozenset[str]) -> Decision:
        """Where the prompt is computed; looks at both sides without choosing there."""
        if not self._router.has_candidate(exclude=frozenset(), roles=DECODERS):
            return Decision(is_remote=True, reason="no_decode_replica")
        if not self._has_prefill(avoid):
            return Decision(is_remote=False, reason="no_prefill_replica")
        if request.num_choices > 1 or request.sampling.beam is not None:
            return Decision(is_remote=False, reason="several_choices")
        if request.sampling.max_tokens - len(request.emitted_token_ids) < 2:
            return Decision(is_remote=False, reason="one_token")
        return self._weigh(request, avoid)

    def _weigh(self, request: EngineRequest, avoid: frozenset[str]) -> Decision:
        limits = self._settings.limits
        wanted = routing_request_of(request, self._settings.router)
        decode = self._router.look(wanted, exclude=avoid, roles=DECODERS)
        if decode is None:
            # It is for the way of whole requests to say that there is no good one.
            return Decision(is_remote=False, reason="unmeetable")
        early = decide_early(wanted.prompt_tokens, decode=decode, limits=limits)
        if early is not None:
            return early
        prefill = self._router.look(wanted, exclude=avoid, roles=PREFILL_ALONE)
        if prefill is None:
            return Decision(is_remote=False, reason="unmeetable")
        return decide(
            wanted.prompt_tokens,
            decode=decode,
            prefill=prefill,
            transfer=self._transfer(),
            limits=limits,
            trust=self._meter.trust(self._clock()),
        )

    def _has_prefill(self, avoid: frozenset[str]) -> bool:
        """Whether a prefill replica is there that is not even suspect: decode can do without."""
        return any(
            status.state is ReplicaState.ACTIVE
            and status.role == "prefill"
            and status.replica_id not in avoid
            for status in self._router.statuses.values()
        )

    def _transfer(self) -> Transfer:
        """What a hand-off costs: as measured, all that is not hidden behind its prefill."""
        fixed_s = self._meter.expected_s(self._clock())
        return Transfer(token_s=0.0, chunk_tokens=0, fixed_s=fixed_s)

    async def _open_pair(self, request: EngineRequest, avoid: frozenset[str]) -> AttemptFeed:
        handoff = Handoff(self._settings.handoff_limits, first_generation=request.attempt + 1)
        (reserve,) = handoff.begin(self._clock())
        assert isinstance(reserve, Reserve), reserve
        place = await self._reserve(request, avoid)
        if place is None:
            handoff.on_reserve_refused(reserve.generation, None, self._clock())
            self._note(HandoffResult("no_decode_capacity"))
            return await self._attempts.open(request, avoid=avoid, roles=DECODERS)
        try:
            return await self._prefill(request, avoid, handoff, place)
        except BaseException:
            self._places.give_back(place)
            raise

    async def _reserve(self, request: EngineRequest, avoid: frozenset[str]) -> DecodePlace | None:
        limits = self._settings.handoff_limits
        # Its prompt will not be computed there; only its blocks and its output count.
        part = replace(request, handoff=HandoffIn(0, limits.adopt_timeout_s))
        wanted = routing_request_of(part, self._settings.router)
        num_tokens = len(request.prompt_token_ids) + len(request.emitted_token_ids) + 1
        place = await self._places.take(
            replace(wanted, max_ttft_s=None),
            num_blocks=-(-num_tokens // self._settings.block_size) + 1,
            avoid=avoid,
            timeout_s=limits.reserve_timeout_s,
        )
        if isinstance(place, Unmeetable):
            raise RequestRefused(slo_refusal(place))
        return place

    async def _prefill(
        self,
        request: EngineRequest,
        avoid: frozenset[str],
        handoff: Handoff,
        place: DecodePlace,
    ) -> AttemptFeed:
        """Send the prompt to the prefill pool; whole to the decode replica if nobody takes it."""
        (prefill,) = handoff.on_reserved(handoff.generation, place.replica_id, self._clock())
        assert isinstance(prefill, Prefill), prefill
        deadline_s = self._settings.handoff.handoff_prefill_timeout_s
        part = replace(request, handoff=HandoffOut(handoff.generation, deadline_s))
        decode_attempt = request.attempt + self._settings.router.max_tries
        try:
            feed = await self._attempts.open(part, avoid=avoid, roles=PREFILL_ALONE)
        except DispatchError as error:
            log.info("prefill pool did not take request=%s: %s", request.request_id, error)
            (locally,) = handoff.on_prefill_failed(handoff.generation, "prefill_refused")
            assert isinstance(locally, DecodeLocally), locally
            self._note(HandoffResult(locally.reason))
            whole = replace(request, attempt=decode_attempt)
            opened = await self._attempts.open(
                whole, avoid=avoid, roles=DECODERS, place=place.reservation
            )
            self._places.give_back(place)
            return opened
        handoff.on_prefill_sent(handoff.generation, feed.replica_id)
        expected = HandoffIn(handoff.generation, min(deadline_s, _LONGEST_EXPECTED_S))
        self._attempts.expect_handoff(place.replica_id, request, expected)
        pairing = Pairing(
            attempts=self._attempts,
            places=self._places,
            clock=self._clock,
            note=self._note,
            adopt_timeout_s=self._settings.handoff.handoff_adopt_timeout_s,
            decode_attempt=decode_attempt,
            drivers=self._drivers,
        )
        return PairFeed(request, handoff, place, feed, pairing)

    def _note(self, result: HandoffResult) -> None:
        self.results[result.outcome] += 1
        if result.exposed_s is not None:
            self._meter.see(result.exposed_s, self._clock())
        self._on_result(result)
