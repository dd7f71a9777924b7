"""Requests for a model that has no replica: held, and the reason that one is started."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from cluster.dispatch.dispatcher import ClusterHealth
from cluster.errors import NoReplica
from cluster.pools.pool_waking import PoolWaker, WakingDispatcher
from router.policies.least_loaded import LeastLoaded
from router.replica_status import ReplicaState, ReplicaStatus
from router.request_router import RequestRouter
from tests.cluster.replica_harness import a_request, until


class Attempts:
    """Opens nothing, and remembers what it was asked for."""

    def __init__(self):
        self.opened = []

    async def open(self, request, *, avoid=frozenset()):
        self.opened.append(request)
        return request

    def health(self):
        return ClusterHealth(num_replicas=0)

    async def close(self):
        self.opened.clear()


class Calls:
    """Calls to pools that have no replica yet."""

    def __init__(self):
        self.num_open = {}
        self.error = None

    def of(self, pool):
        async def call():
            if self.error is not None:
                raise self.error
            self.num_open[pool] = self.num_open.get(pool, 0) + 1
            await asyncio.Event().wait()

        return call


@asynccontextmanager
async def asleep(*pools, hold_timeout_s=5.0):
    """A dispatcher over these pools, none of which has a replica."""
    calls, attempts = Calls(), Attempts()
    router = RequestRouter(LeastLoaded(random.Random(0)))
    dispatcher = WakingDispatcher(
        attempts,
        router=router,
        waker=PoolWaker({pool: calls.of(pool) for pool in pools}),
        hold_timeout_s=hold_timeout_s,
        min_prompt_tokens=64,
    )
    yield dispatcher, router, calls, attempts
    await dispatcher.close()


def meet(router, role="mixed"):
    router.update(ReplicaStatus(role, role=role, state=ReplicaState.ACTIVE))


async def test_requests_are_held_until_the_first_replica_is_there():
    async with asleep("mixed") as (dispatcher, router, calls, attempts):
        opening = [asyncio.create_task(dispatcher.open(a_request(f"r{n}"))) for n in range(3)]
        await until(lambda: calls.num_open == {"mixed": 1})
        assert (dispatcher.num_held, attempts.opened) == (3, [])
        meet(router)
        await asyncio.gather(*opening)
        assert (dispatcher.num_held, len(attempts.opened)) == (0, 3)


async def test_a_held_request_has_an_end():
    async with asleep("mixed", hold_timeout_s=0.1) as (dispatcher, _, _, attempts):
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request())
        assert (dispatcher.num_held, attempts.opened) == (0, [])


async def test_a_client_that_leaves_is_held_no_longer():
    async with asleep("mixed") as (dispatcher, _, _, _):
        opening = asyncio.create_task(dispatcher.open(a_request()))
        await until(lambda: dispatcher.num_held == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert dispatcher.num_held == 0


async def test_a_call_that_failed_is_made_again_by_the_next_request():
    async with asleep("mixed", hold_timeout_s=0.1) as (dispatcher, _, calls, _):
        calls.error = NoReplica("not now")
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request())
        calls.error = None
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request())
        assert calls.num_open == {"mixed": 1}


async def test_a_long_prompt_wakes_the_prefill_pool_and_does_not_wait_for_it():
    async with asleep("prefill") as (dispatcher, router, calls, attempts):
        meet(router, "decode")
        await dispatcher.open(a_request("short"))
        await dispatcher.open(a_request("long", prompt=tuple(range(64))))
        await until(lambda: calls.num_open == {"prefill": 1})
        assert len(attempts.opened) == 2


async def test_a_prefill_replica_serves_while_the_decode_pool_wakes():
    async with asleep("decode") as (dispatcher, router, calls, attempts):
        meet(router, "prefill")
        await dispatcher.open(a_request())
        await until(lambda: calls.num_open == {"decode": 1})
        assert len(attempts.opened) == 1


async def test_a_model_that_sleeps_is_healthy_and_one_that_is_gone_is_not():
    async with asleep("mixed") as (dispatcher, _, _, _):
        assert dispatcher.health().is_healthy
    async with asleep() as (dispatcher, _, _, attempts):
        assert not dispatcher.health().is_healthy
        await dispatcher.open(a_request())
        assert attempts.opened, "without a pool to wake nobody is held"
