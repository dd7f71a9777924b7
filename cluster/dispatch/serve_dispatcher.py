"""Brings a request to a replica and its tokens back, trying another replica while that is safe.

The router chooses before the call (DESIGN 2.2). The call carries the request and stays open; the
replica's stream says whether it was admitted. A replica that refuses, left, or does not admit in
time is given up and another is chosen: nothing has reached the client yet, so nobody can tell.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from cluster.dispatch.dispatcher import AttemptFeed, ClusterHealth
from cluster.dispatch.replica_directory import ReplicaDirectory
from cluster.dispatch.replica_link import ReplicaLink
from cluster.errors import DispatchError, NoReplica, ReplicaLost, RequestRefused
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.streams.token_feed import NotAccepted, StreamFeed
from replicas.handoff import HandoffIn, HandoffOut
from replicas.request import EngineRequest, Refusal, RefusalReason
from router.config import RouterConfig
from router.replica_status import EVERY_ROLE, PREFILL_ALONE, ReplicaRole
from router.request_router import RequestRouter, Reservation
from router.routing_policy import RoutingRequest, Unmeetable

log = logging.getLogger(__name__)

# Longest time between the answer that a request ended and its last tokens on the stream.
LAST_TOKENS_TIMEOUT_S = 5.0
RETRY_AFTER_S = 1.0

Trouble = Literal["hung", "draining"]
CallReplica = Callable[[EngineRequest, ReplicaRoute], "asyncio.Task[Acknowledgement]"]


@dataclass(slots=True)
class Attempt:
    """One try of one request at one replica."""

    link: ReplicaLink
    feed: StreamFeed
    call: "asyncio.Task[Acknowledgement]"


class ServeDispatcher:
    """The Dispatcher of a gateway.

    call: starts the unary call to the replica that the route names; cancelling the task must
    cancel the request there.
    """

    def __init__(
        self,
        *,
        router: RequestRouter,
        directory: ReplicaDirectory,
        call: CallReplica,
        config: RouterConfig,
    ) -> None:
        self._router = router
        self._directory = directory
        self._call = call
        self._config = config
        self._lingering: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Acknowledgement]] = set()

    async def open(
        self,
        request: EngineRequest,
        *,
        avoid: frozenset[str] = frozenset(),
        roles: frozenset[ReplicaRole] = EVERY_ROLE,
        place: Reservation | None = None,
    ) -> StreamFeed:
        """Submit; returns once an engine has admitted the request.

        avoid: replicas that are taken only when there is no other. roles: of which kinds a replica
        may be. place: a choice that was made already, which is tried first.

        Raises RequestRefused if every replica that was asked refused or none can be in time,
        NoReplica if none could be asked.
        """
        has_other = self._router.has_candidate(exclude=avoid, roles=roles)
        excluded = set(avoid) if has_other else set()
        refused: RequestRefused | None = None
        has_lost = False
        routing_request = routing_request_of(request, self._config)
        for tries in range(self._config.max_tries):
            reservation = place or self._router.choose(
                routing_request, exclude=frozenset(excluded), roles=roles
            )
            place = None
            if reservation is None:
                break
            if isinstance(reservation, Unmeetable):
                raise RequestRefused(slo_refusal(reservation))
            try:
                attempt = replace(request, attempt=request.attempt + tries)
                return await self._try(attempt, reservation, excluded, roles)
            except RequestRefused as error:
                if error.refusal.reason is not RefusalReason.QUEUE_FULL:
                    raise
                refused = error
            except DispatchError as error:
                log.warning(
                    "replica given up request=%s replica=%s reason=%s",
                    request.request_id,
                    reservation.replica_id,
                    error,
                )
                has_lost |= isinstance(error, ReplicaLost)
            excluded.add(reservation.replica_id)
        if refused is not None:
            raise refused
        # What was lost may have been lost over this request, which then had better not come again.
        raise NoReplica(
            "No replica can take requests now.",
            retry_after_s=RETRY_AFTER_S,
            may_wait=not has_lost,
            was_asked=len(excluded - avoid) > 0,
        )

    def expect_handoff(self, replica_id: str, request: EngineRequest, handoff: HandoffIn) -> None:
        """Let a replica fetch the blocks of a request that will be handed over to it, as they come.

        It also tells other gateways that room is promised there. Whether it hears of all that only
        decides how long hand-offs take.
        """
        link = self._directory.link(replica_id)
        if link is not None:
            link.expect_handoff(request, handoff)

    def forget_handoff(self, replica_id: str, request_id: str) -> None:
        """Let a replica give to others what was promised to a request that will not come there."""
        link = self._directory.link(replica_id)
        if link is not None:
            link.forget_handoff(request_id)

    def health(self) -> ClusterHealth:
        """What the last statuses and heartbeats say."""
        return self._directory.health()

    def trouble(
        self, feed: AttemptFeed, *, roles: frozenset[ReplicaRole] = EVERY_ROLE
    ) -> Trouble | None:
        """Why an open attempt had better go on elsewhere, if another replica could take it.

        roles: of which kinds that one may be.
        hung: nothing was heard of its replica for too long, or its engine stands still. draining:
        it left the deployment, and the request did not end within the grace time.
        """
        link = self._directory.link(feed.replica_id)
        if link is None:
            return None
        trouble: Trouble | None = None
        if link.silence_s() > self._config.hung_after_s or link.stuck_s() > 0.0:
            trouble = "hung"
        elif link.draining_s() > self._config.migrate_after_s:
            trouble = "draining"
        here = frozenset({feed.replica_id})
        if trouble and self._router.has_candidate(exclude=here, roles=roles):
            return trouble
        return None

    @property
    def num_open_calls(self) -> int:
        """Calls to replicas that have not been answered yet."""
        return len(self._calls)

    async def close(self) -> None:
        """Cancel every call that is still open."""
        pending = [*self._calls, *self._lingering]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _try(
        self,
        request: EngineRequest,
        reservation: Reservation,
        excluded: set[str],
        roles: frozenset[ReplicaRole],
    ) -> StreamFeed:
        """One replica's chance; on any failure nothing of it is left behind."""
        attempt = self._begin(request, reservation)
        try:
            await self._until_admitted(attempt, excluded | {reservation.replica_id}, roles)
        except BaseException:
            await attempt.feed.close()
            raise
        finally:
            # Admitted, it is counted in the replica's own figure; else it is not there.
            self._router.settle(reservation)
        return attempt.feed

    async def _until_admitted(
        self, attempt: Attempt, excluded: set[str], roles: frozenset[ReplicaRole]
    ) -> None:
        """Wait for admission; give a slow replica up only for another one, or once it is stuck.

        One that is not heard of counts as hung earlier than one that is slow. The only replica
        that is left may be slow because the machine is: giving it up would fail a request that it
        is about to serve.
        """
        clock, config = asyncio.get_running_loop().time, self._config
        # A prompt that no prefill replica takes in time is one for the decode side.
        instead = EVERY_ROLE if roles == PREFILL_ALONE else roles
        began_at = clock()
        look_s = min(config.accept_timeout_s, config.hung_after_s / 2)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await asyncio.shield(attempt.feed.admitted)
                    return
            waited_s = clock() - began_at
            is_late = waited_s >= config.accept_timeout_s
            is_hung = attempt.link.silence_s() > config.hung_after_s
            if not (is_late or is_hung):
                continue
            if self._router.has_candidate(exclude=frozenset(excluded), roles=instead) or (
                is_late and (not attempt.link.is_advancing or waited_s >= config.stuck_after_s)
            ):
                raise NotAccepted("not admitted in time")

    def _begin(self, request: EngineRequest, reservation: Reservation) -> Attempt:
        link = self._directory.link(reservation.replica_id)
        if link is None:
            self._router.release(reservation)
            raise NotAccepted("the replica is gone")
        feed = StreamFeed(
            request,
            on_finish_choice=lambda choice: link.finish_choice(
                request.request_id, request.attempt, choice
            ),
            on_close=lambda may_end: self._leave(attempt, may_end=may_end),
            replica_id=reservation.replica_id,
        )
        link.add_feed(feed)
        route = ReplicaRoute(link.replica_id, self._directory.gateway_id)
        call = self._call(request, route)
        self._calls.add(call)
        attempt = Attempt(link, feed, call)
        call.add_done_callback(lambda done: self._on_answer(attempt, done))
        return attempt

    def _on_answer(self, attempt: Attempt, call: "asyncio.Task[Acknowledgement]") -> None:
        """The call ended. Its stream should say so too; if not in time, the request is lost."""
        self._calls.discard(call)
        if call.cancelled() or attempt.feed.has_ended:
            return
        error = call.exception()
        if error is not None:
            log.warning("call failed request=%s error=%r", attempt.feed.request.request_id, error)
            attempt.feed.fail(ReplicaLost("The replica was lost while it worked on the request."))
            return
        answer = call.result()
        if not answer.is_accepted:
            attempt.feed.fail(NotAccepted(answer.reason))
            return
        asyncio.get_running_loop().call_later(
            LAST_TOKENS_TIMEOUT_S,
            attempt.feed.fail,
            ReplicaLost("The last tokens of the request did not arrive."),
        )

    def _leave(self, attempt: Attempt, *, may_end: bool) -> None:
        """The reader left: cancel the call, unless the request is about to end by itself."""
        attempt.link.remove_feed(attempt.feed)
        if attempt.call.done():
            return
        if not may_end:
            attempt.call.cancel()
            return
        task = asyncio.create_task(_let_end(attempt.call))
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)


async def _let_end(call: "asyncio.Task[Acknowledgement]") -> None:
    """Wait for the answer a little; a replica that does not end the request is told to."""
    done, _ = await asyncio.wait({call}, timeout=LAST_TOKENS_TIMEOUT_S)
    if not done:
        call.cancel()


def routing_request_of(request: EngineRequest, config: RouterConfig) -> RoutingRequest:
    """What the router needs to know. A stream that has begun is not refused for being late.

    Of a request that is handed over, each side has its own part of the work.
    """
    num_emitted = len(request.emitted_token_ids)
    is_new = num_emitted == 0 and request.attempt == 0
    prompt_tokens = len(request.prompt_token_ids) + num_emitted
    output_tokens = request.num_choices * (request.sampling.max_tokens - num_emitted)
    match request.handoff:
        case HandoffOut():
            output_tokens = 1
        case HandoffIn():
            prompt_tokens = 1
    return RoutingRequest(
        request_id=request.request_id,
        prompt_tokens=prompt_tokens,
        max_output_tokens=output_tokens,
        block_hashes=request.block_hashes,
        session_id=request.session_id or "",
        max_ttft_s=(request.ttft_slo_s or config.ttft_slo_s or None) if is_new else None,
        max_tpot_s=(request.tpot_slo_s or config.tpot_slo_s or None) if is_new else None,
    )


def slo_refusal(answer: Unmeetable) -> Refusal:
    """429: every replica would be too late; the client hears what was predicted."""
    return Refusal(
        RefusalReason.SLO_UNMEETABLE,
        f"No replica can meet the requested {answer.reason.upper()}: the best would need "
        f"{answer.predicted_ttft_s:.2f} s to the first token and "
        f"{answer.predicted_tpot_s * 1000:.0f} ms for each further one.",
        retry_after_s=answer.retry_after_s,
    )
