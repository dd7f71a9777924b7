"""One replica: whom it takes requests from, and what ends them."""

import asyncio
from dataclasses import replace

import pytest

from cluster.replica.engine_supervisor import EngineUnhealthy, HealthLimits
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.replica.scripted_engine import EngineScript
from cluster.streams.stream_codec import PROTOCOL_VERSION
from replicas.request import FinishReason
from tests.cluster.replica_harness import BINDING, a_request, cluster, start_replica, until

SLOW = EngineScript(step_s=0.01)
ROUTE = ReplicaRoute("replica0", "gateway")


async def test_the_answer_says_how_every_choice_ended():
    async with cluster() as made:
        answer = await made.replicas["replica0"].service.generate(a_request(n=2), ROUTE)
        assert answer.is_accepted
        assert answer.finish_reasons == (FinishReason.LENGTH,) * 2
        assert answer.num_output_tokens == 10


async def test_a_request_whose_tokens_nobody_would_get_is_not_taken():
    async with cluster() as made:
        route = ReplicaRoute("replica0", "a stranger")
        answer = await made.replicas["replica0"].service.generate(a_request(), route)
        assert not answer.is_accepted
        assert "stream" in answer.reason


async def test_a_call_that_serve_sends_twice_runs_once():
    async with cluster(script=SLOW) as made:
        service = made.replicas["replica0"].service
        first = asyncio.create_task(service.generate(a_request(), ROUTE))
        await asyncio.sleep(0)
        second = await service.generate(a_request(), ROUTE)
        assert not second.is_accepted
        assert (await first).num_output_tokens == 5


async def test_another_attempt_of_a_request_is_another_request():
    async with cluster(script=SLOW) as made:
        service = made.replicas["replica0"].service
        attempts = [replace(a_request(), attempt=number) for number in range(2)]
        answers = await asyncio.gather(*(service.generate(one, ROUTE) for one in attempts))
        assert [answer.is_accepted for answer in answers] == [True, True]


async def test_requests_of_a_gateway_that_stays_away_are_ended():
    replica = await start_replica("replica0", SLOW, binding=replace(BINDING, gateway_grace_s=0.1))
    async with cluster(num_replicas=0) as made:
        made.replicas["replica0"] = replica
        made.announce()
        await made.ready()
        call = asyncio.create_task(replica.service.generate(a_request(max_tokens=10_000), ROUTE))
        await until(lambda: replica.core.num_running == 1)
        await made.directory.close()
        await until(lambda: replica.core.num_running == 0)
        assert (await asyncio.wait_for(call, 1.0)).reason == "the gateway is gone"
        assert replica.core.num_cancelled == 1


async def test_the_announcement_says_what_a_gateway_has_to_know():
    async with cluster() as made:
        announcement = made.replicas["replica0"].service.announcement
        assert announcement.address.startswith("127.0.0.1:")
        assert announcement.protocol_version == PROTOCOL_VERSION
        assert (announcement.role, announcement.fingerprint) == ("mixed", "scripted")
        assert announcement.block_size == 16


async def test_a_stuck_engine_is_unhealthy_and_asking_never_waits():
    script = EngineScript(step_s=0.6)
    replica = await start_replica("replica0", script, limits=HealthLimits(stall_s=0.2))
    async with cluster(num_replicas=0) as made:
        made.replicas["replica0"] = replica
        made.announce()
        await made.ready()
        replica.service.check_health()
        call = asyncio.create_task(replica.service.generate(a_request(max_tokens=2), ROUTE))
        await asyncio.sleep(0.3)
        with pytest.raises(EngineUnhealthy):
            replica.service.check_health()
        await call
        replica.service.check_health()


async def test_closing_ends_what_is_open_with_an_error():
    async with cluster(script=SLOW) as made:
        service = made.replicas["replica0"].service
        call = asyncio.create_task(service.generate(a_request(max_tokens=10_000), ROUTE))
        await until(lambda: service.heartbeat().has_work)
        await service.close()
        assert (await call).finish_reasons == (FinishReason.ERROR,)
        assert not (await service.generate(a_request("late"), ROUTE)).is_accepted
