"""Holds requests for a pool that has gone to zero, and wakes it: the first client waits, no more.

A call has to be made although nobody can take it, since Serve's controller counts calls that are
queued at a handle; it starts a replica for them. The call itself asks for nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace

from cluster.dispatch.dispatcher import AttemptFeed, ClusterHealth
from cluster.dispatch.failover_dispatcher import AttemptDispatcher
from cluster.dispatch.serve_dispatcher import Trouble
from cluster.errors import NoReplica
from replicas.request import EngineRequest
from router.replica_status import DECODERS, EVERY_ROLE, PREFILL_ALONE
from router.request_router import RequestRouter

log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.05

# A call that any replica of the pool answers as soon as there is one; raises NoReplica.
WakeCall = Callable[[], Coroutine[None, None, None]]


class PoolWaker:
    """One open call for each pool that is wanted and empty. calls: for pools that may be empty."""

    def __init__(self, calls: Mapping[str, WakeCall]) -> None:
        self._calls = calls
        self._waking: dict[str, asyncio.Task[None]] = {}

    @property
    def decoders(self) -> tuple[str, ...]:
        """Pools that may be empty and can take whole requests."""
        return tuple(name for name in self._calls if name in DECODERS)

    def wake(self, pool: str) -> None:
        """See to it that the pool has a replica soon; one that cannot be empty is left alone."""
        if pool in self._calls and pool not in self._waking:
            log.info("pool woken pool=%s", pool)
            task = asyncio.create_task(self._call(pool), name=f"wake {pool}")
            self._waking[pool] = task
            task.add_done_callback(lambda _task: self._waking.pop(pool, None))

    async def close(self) -> None:
        """Ask for nothing more."""
        tasks = list(self._waking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, pool: str) -> None:
        try:
            await self._calls[pool]()
        except NoReplica as error:
            # The next request asks again.
            log.warning("pool not woken pool=%s error=%s", pool, error)


class WakingDispatcher:
    """An AttemptDispatcher that wakes pools for requests, and holds those that nobody can take.

    hold_timeout_s: longest wait for a first replica. min_prompt_tokens: prompts that are worth
    waking the prefill pool for, which nobody waits for.
    """

    def __init__(
        self,
        attempts: AttemptDispatcher,
        *,
        router: RequestRouter,
        waker: PoolWaker,
        hold_timeout_s: float,
        min_prompt_tokens: int,
    ) -> None:
        self._attempts = attempts
        self._router = router
        self._waker = waker
        self._hold_timeout_s = hold_timeout_s
        self._min_prompt_tokens = min_prompt_tokens
        self.num_held = 0

    async def open(
        self, request: EngineRequest, *, avoid: frozenset[str] = frozenset()
    ) -> AttemptFeed:
        """As the dispatcher below, once there is a replica; NoReplica if none comes in time."""
        none = frozenset[str]()
        if len(request.prompt_token_ids) >= self._min_prompt_tokens and not (
            self._router.has_candidate(exclude=none, roles=PREFILL_ALONE)
        ):
            self._waker.wake("prefill")
        if self._waker.decoders and not self._router.has_candidate(exclude=none, roles=DECODERS):
            # One pool of several is enough to go on; it grows with the work.
            self._waker.wake(self._waker.decoders[0])
            await self._hold()
        return await self._attempts.open(request, avoid=avoid)

    def health(self) -> ClusterHealth:
        """As the dispatcher below says; a pool that sleeps is well."""
        health = self._attempts.health()
        if health.num_replicas or not self._waker.decoders:
            return health
        return replace(health, num_replicas=1)

    def trouble(self, feed: AttemptFeed) -> Trouble | None:
        """As the dispatcher below says."""
        return self._attempts.trouble(feed)

    async def close(self) -> None:
        """Wake nobody any more; then as the dispatcher below."""
        await self._waker.close()
        await self._attempts.close()

    async def _hold(self) -> None:
        self.num_held += 1
        try:
            async with asyncio.timeout(self._hold_timeout_s):
                # While outputs have no replica of their own, one that prefills does all of it.
                while not self._router.has_candidate(exclude=frozenset(), roles=EVERY_ROLE):  # noqa: ASYNC110 - the router has no event for it
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError as error:
            raise NoReplica("No replica was started in time.") from error
        finally:
            self.num_held -= 1
