"""Which replicas a gateway uses, and what it says about their health."""

import asyncio
from dataclasses import replace

import pytest

from cluster.errors import ReplicaLost
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.replica.scripted_engine import EngineScript
from cluster.streams.stream_codec import PROTOCOL_VERSION
from tests.cluster.replica_harness import FAST, a_gateway, a_request, cluster, read_all, until

STRANGER = ReplicaAnnouncement(
    "127.0.0.1:1", "mixed", 16, "another model", PROTOCOL_VERSION, 2048, 512
)


@pytest.mark.parametrize(
    ("announced", "problem"),
    [
        (STRANGER.to_metadata(), "another model"),
        (replace(STRANGER, protocol_version=999).to_metadata(), "version 999"),
        ({}, "address"),
    ],
)
async def test_a_replica_that_does_not_fit_is_not_used_and_reported(announced, problem):
    router, directory, _ = a_gateway(lambda request, route: None, fingerprint="ours")
    directory.on_replica_set({"x": announced})
    assert router.statuses == {}
    assert problem in directory.health().problems[0]
    assert directory.health().num_replicas == 0
    directory.on_replica_set({})
    assert directory.health().problems == ()
    await directory.close()


async def test_the_first_announcement_can_be_waited_for():
    _, directory, _ = a_gateway(lambda request, route: None)
    waiting = asyncio.create_task(directory.first_announcement())
    await asyncio.sleep(0)
    directory.on_replica_set({"x": STRANGER.to_metadata()})
    assert await waiting == STRANGER
    assert await directory.first_announcement() == STRANGER
    await directory.close()


async def test_a_replica_that_nobody_can_reach_is_not_counted():
    _, directory, _ = a_gateway(lambda request, route: None)
    directory.on_replica_set({"x": STRANGER.to_metadata()})
    await asyncio.sleep(0.1)
    assert directory.health().num_replicas == 0
    await directory.close()


async def test_a_live_cluster_is_healthy():
    async with cluster(num_replicas=2) as made:
        health = made.dispatcher.health()
        assert health.is_healthy
        assert health.num_replicas == 2


async def test_work_without_a_step_is_reported():
    watchful = replace(FAST, stuck_after_s=0.15)
    async with cluster(script=EngineScript(step_s=0.8), config=watchful) as made:
        opening = asyncio.create_task(made.dispatcher.open(a_request(max_tokens=1)))
        await until(lambda: bool(made.directory.health().problems))
        assert "without a step" in made.directory.health().problems[0]
        assert not made.directory.health().is_healthy
        feed = await opening
        await read_all(feed)
        await feed.close()
        await until(lambda: made.directory.health().is_healthy)


async def test_silence_makes_a_replica_suspect_without_any_event():
    async with cluster(num_replicas=2) as made:
        beats = made.replicas["replica0"].service._stream._beats
        beats.cancel()
        await until(lambda: made.router.statuses["replica0"].state == "suspect")
        assert made.router.statuses["replica1"].state == "active"


async def test_a_replica_whose_stream_is_lost_fails_its_requests():
    async with cluster(script=EngineScript(step_s=0.01)) as made:
        feed = await made.dispatcher.open(a_request(max_tokens=10_000))
        reading = asyncio.create_task(read_all(feed))
        await made.replicas["replica0"].service._stream.close("test")
        with pytest.raises(ReplicaLost):
            await asyncio.wait_for(reading, 1.0)
        await feed.close()
