"""What replicas' prefix caches hold decides where requests go, through losses and restarts."""

import asyncio
from dataclasses import replace

import pytest

from cluster.errors import RequestRefused
from cluster.replica.scripted_engine import EngineScript
from replicas.engine_stats import EngineStats
from replicas.request import EngineRequest, KvEvent, RefusalReason
from replicas.step_output import StepOutput
from router.prefixes.prefix_index import PrefixIndex
from tests.cluster.replica_harness import (
    FAST,
    Cluster,
    a_gateway,
    a_request,
    cluster,
    read_all,
    until,
)

NAMES = tuple(bytes([number]) * 32 for number in range(4))
BY_PREFIX = replace(FAST, policy="prefix_affinity")


def index_of(made: Cluster) -> PrefixIndex:
    index = made.directory._index
    assert index is not None
    return index


def tell(made: Cluster, replica_id: str, *events: KvEvent) -> None:
    """As if the engine's cache had changed in a step of its own."""
    core = made.replicas[replica_id].core
    core._on_output(StepOutput(stats=EngineStats(step=1, block_size=16), kv_events=events))


def with_blocks(request: EngineRequest) -> EngineRequest:
    return replace(request, prompt_token_ids=(1,) * 64, block_hashes=NAMES)


async def served_by(made: Cluster, request: EngineRequest) -> str:
    feed = await made.dispatcher.open(request)
    await read_all(feed)
    await feed.close()
    return feed.replica_id


async def test_a_request_goes_where_its_prefix_is():
    async with cluster(num_replicas=3, config=BY_PREFIX) as made:
        tell(made, "replica1", KvEvent("stored", NAMES))
        await until(lambda: index_of(made).hits(NAMES) == {"replica1": 4})
        for number in range(4):
            assert await served_by(made, with_blocks(a_request(f"r{number}"))) == "replica1"
        assert made.router.decisions["prefix_hit"] == 4


async def test_a_gateway_that_comes_late_learns_what_is_cached():
    async with cluster(num_replicas=1, config=BY_PREFIX) as made:
        tell(made, "replica0", KvEvent("stored", NAMES))
        await until(lambda: index_of(made).hits(NAMES) == {"replica0": 4})
        _, late, dispatcher = a_gateway(lambda request, route: None, gateway_id="late")
        late.on_replica_set(
            {"replica0": made.replicas["replica0"].service.announcement.to_metadata()}
        )
        assert late._index is not None
        await until(lambda: late._index.hits(NAMES) == {"replica0": 4})
        assert late._index.is_exact("replica0")
        await dispatcher.close()
        await late.close()


async def test_lost_changes_are_made_good_by_a_snapshot():
    async with cluster(num_replicas=1, config=BY_PREFIX) as made:
        tell(made, "replica0", KvEvent("stored", NAMES[:2]))
        await until(lambda: index_of(made).is_exact("replica0"))
        index_of(made)._publishers["replica0"].next_number = 0
        tell(made, "replica0", KvEvent("removed", NAMES[1:2]), KvEvent("stored", NAMES[3:]))
        await until(lambda: index_of(made).figures.gaps_total == 1)
        await until(lambda: index_of(made).is_exact("replica0"))
        assert index_of(made).hits(NAMES) == {"replica0": 1}


async def test_a_restarted_engine_core_is_credited_with_nothing():
    async with cluster(num_replicas=1, config=BY_PREFIX) as made:
        tell(made, "replica0", KvEvent("stored", NAMES))
        await until(lambda: index_of(made).hits(NAMES) == {"replica0": 4})
        made.replicas["replica0"].core.crash()
        await until(lambda: index_of(made).hits(NAMES) == {})
        await until(lambda: index_of(made).is_exact("replica0"))


async def test_a_replica_that_is_gone_is_credited_with_nothing():
    async with cluster(num_replicas=2, config=BY_PREFIX) as made:
        tell(made, "replica0", KvEvent("stored", NAMES))
        await until(lambda: index_of(made).hits(NAMES) == {"replica0": 4})
        made.announce("replica0")
        await made.replicas["replica0"].service._stream.close("test")
        await until(lambda: index_of(made).hits(NAMES) == {})


async def test_every_gateway_hears_what_the_others_had_admitted():
    async with cluster(num_replicas=1) as made:
        await served_by(made, a_request("r", max_tokens=5, prompt=(1, 2)))
        await until(lambda: made.router.statuses["replica0"].admissions != ())
        (admission,) = made.router.statuses["replica0"].admissions
        assert (admission.gateway_id, admission.admitted_tokens_total) == ("gateway", 7)


async def test_a_latency_that_no_replica_can_keep_is_refused_before_any_is_asked():
    config = replace(FAST, policy="cost")
    async with cluster(script=EngineScript(), config=config) as made:
        core = made.replicas["replica0"].core
        steps = (
            EngineStats(step=101, num_decode_tokens=1, run_s=0.5),
            EngineStats(step=102, num_prefill_tokens=10, run_s=10.0),
        )
        for stats in steps:
            core._on_output(StepOutput(stats=stats))
            await asyncio.sleep(0.05)
        request = replace(a_request(), ttft_slo_s=0.1)
        with pytest.raises(RequestRefused) as refused:
            await made.dispatcher.open(request)
        assert refused.value.refusal.reason is RefusalReason.SLO_UNMEETABLE
        assert made.router.decisions == {"unmeetable_ttft": 1}
