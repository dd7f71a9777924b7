"""Prefill replicas that help out in the decode pool."""

from contextlib import asynccontextmanager

import pytest

from cluster.pools.role_lending import RoleLending, decode_pressure, prefill_pressure
from cluster.replica.scripted_engine import EngineScript
from router.pace import Pace
from router.replica_status import DECODERS, ReplicaStatus
from tests.cluster.replica_harness import a_request, cluster, until

STEADY = EngineScript(step_s=0.005)


@asynccontextmanager
async def lending(num_prefill, *, max_lent=1):
    """Pools whose decode replica can be filled, a clock to set, and what was told."""
    told, clock = [], [0.0]
    async with cluster(pools={"prefill": (STEADY,) * num_prefill, "decode": (STEADY,)}) as made:
        yield (
            made,
            RoleLending(
                router=made.router,
                directory=made.directory,
                max_lent=max_lent,
                hold_s=10.0,
                clock=lambda: clock[0],
                tell=lambda *event: told.append(event),
            ),
            clock,
            told,
        )


def looks(lent, clock, *, until_s):
    """What was changed in so many seconds, looking twice a second."""
    changes = []
    while clock[0] < until_s:
        clock[0] += 0.5
        if (change := lent.look()) is not None:
            changes.append((change.reason, change.role))
    return changes


async def test_an_overload_that_lasts_makes_one_prefill_replica_mixed_until_it_is_over():
    async with lending(2) as (made, lent, clock, told):
        feeds = [
            await made.dispatcher.open(a_request(f"r{n}", max_tokens=100_000), roles=DECODERS)
            for n in range(120)
        ]
        assert looks(lent, clock, until_s=9.0) == []
        assert looks(lent, clock, until_s=40.0) == [("lend", "mixed")]
        roles = sorted(status.role for status in made.router.statuses.values())
        assert roles == ["decode", "mixed", "prefill"]
        for feed in feeds:
            await feed.close()
        await until(lambda: not made.directory.link("decode0").report.stats.num_running)
        assert looks(lent, clock, until_s=80.0) == [("return", "prefill")]
        assert [text for _, _, text in told] == ["lent to the decode pool", "back in its own pool"]


async def test_the_last_prefill_replica_is_never_lent():
    async with lending(1) as (made, lent, clock, _):
        feeds = [
            await made.dispatcher.open(a_request(f"r{n}", max_tokens=100_000), roles=DECODERS)
            for n in range(120)
        ]
        assert looks(lent, clock, until_s=40.0) == []
        for feed in feeds:
            await feed.close()


def test_a_decode_pool_is_full_by_places_or_by_blocks():
    places = ReplicaStatus("a", max_num_seqs=10, num_running=6, num_waiting=3, num_blocks=100)
    assert decode_pressure([places]) == pytest.approx(1.0 / 0.9)
    roomy = ReplicaStatus("a", max_num_seqs=10, num_running=9, num_blocks=10, num_free_blocks=10)
    assert decode_pressure([roomy]) == pytest.approx(1.0)
    assert decode_pressure([]) == 0.0


def test_a_prefill_pool_is_full_by_the_time_that_its_work_takes():
    pool = [
        ReplicaStatus("a", outstanding_tokens=3000),
        ReplicaStatus("b", outstanding_tokens=1000),
    ]
    paces = {"a": Pace(prefill_token_s=0.001), "b": Pace(prefill_token_s=0.001)}
    assert prefill_pressure(pool, paces) == pytest.approx(1.0)
    assert prefill_pressure(pool, {}) == 0.0
