"""Pools of prefill and decode replicas on a real Ray and Serve, with the scripted engine."""

import asyncio
import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from cluster.config import ClusterConfig
from cluster.pools.pool_config import HandoffConfig, PoolConfig
from tests.cluster.running_service import running_service
from tests.cluster.test_serve_app import (
    APP,
    a_body,
    a_client,
    expected_text,
    processes_named,
    stream_text,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def config(free_port) -> Iterator[ClusterConfig]:
    """A running service of one gateway, one prefill and two decode replicas."""
    with running_service(
        free_port,
        prefill=PoolConfig(num_replicas=1),
        decode=PoolConfig(num_replicas=2, max_num_seqs=64),
        handoff=HandoffConfig(disaggregation="always"),
    ) as made:
        yield made


@pytest.fixture
def url(config: ClusterConfig) -> str:
    """The address of its endpoint."""
    return f"http://127.0.0.1:{config.gateway.port}"


async def figure(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    """A figure of the service; 0 while it does not show."""
    text = (await client.get("/metrics")).text
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(f"{name}{{") and all(each in line for each in wanted)
    ]
    return sum(values)


async def shows(client: httpx.AsyncClient, least: float, name: str, **labels: str) -> None:
    """Wait until a figure has come so far; reports come once a second."""
    async with asyncio.timeout(20):
        while await figure(client, name, **labels) < least:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.1)


async def test_requests_are_handed_from_one_pool_to_the_other(url: str):
    prompts = [f"stream{number}" for number in range(16)]
    async with a_client(url) as client:
        texts = await asyncio.gather(*(stream_text(client, prompt, 60) for prompt in prompts))
        assert texts == [expected_text(prompt, 60) for prompt in prompts]
        await shows(client, 16, "pagoda:handoff_results_total", outcome="adopted")
        assert await figure(client, "pagoda:disaggregation_decisions_total", reason="forced") >= 16
        for pool, number in (("prefill", 1), ("decode", 2)):
            found = await figure(client, "pagoda:replica_state", pool=pool, state="active")
            assert found == number, pool


async def test_streams_go_on_when_a_decode_replica_is_killed(url: str):
    prompts = [f"decode{number}" for number in range(8)]
    async with a_client(url) as client:
        reading = [asyncio.create_task(stream_text(client, p, 400)) for p in prompts]
        await asyncio.sleep(0.7)
        kill(1, "decode")
        assert await asyncio.gather(*reading) == [expected_text(p, 400) for p in prompts]
        await shows(client, 1, "pagoda:failovers_total", reason="lost")


async def test_without_its_prefill_pool_the_service_goes_on(url: str):
    async with a_client(url) as client:
        kill(1, "prefill")
        for number in range(10):
            answer = await client.post("/v1/completions", json=a_body(f"p{number}", max_tokens=30))
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["text"] == expected_text(f"p{number}", 30)
        await shows(client, 1, "pagoda:replica_state", pool="prefill", state="active")


def kill(number: int, pool: str) -> None:
    """Kill so many replicas of a pool."""
    found: list[psutil.Process] = processes_named(f"ServeReplica:{APP}:{pool}")
    assert len(found) >= number, pool
    for process in found[:number]:
        os.kill(process.pid, signal.SIGKILL)
