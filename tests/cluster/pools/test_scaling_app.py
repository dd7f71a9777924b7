"""A pool that scales, on a real Ray and Serve: down to nothing, up for a client, up for a crowd."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from ray import serve

from cluster.app import REPLICA
from cluster.config import ClusterConfig
from cluster.pools.pool_config import ScalingConfig
from tests.cluster import running_service as service
from tests.cluster.test_serve_app import APP, a_body, a_client, expected_text, stream_text

pytestmark = [
    *(pytest.mark.ray, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")),
    # Serve deprecates the setting before there is anything in its place.
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def config(free_port) -> Iterator[ClusterConfig]:
    """A running service of one gateway and up to two replicas that end soon when idle."""
    with service.running_service(
        free_port,
        replica=service.replace(service.REPLICA, min_replicas=0, max_replicas=2),
        scaling=ScalingConfig(
            target_backlog_s=0.2, upscale_delay_s=1.0, downscale_delay_s=3.0, idle_to_zero_s=4.0
        ),
    ) as made:
        yield made


@pytest.fixture
def url(config: ClusterConfig) -> str:
    """The address of its endpoint."""
    return f"http://127.0.0.1:{config.gateway.port}"


def num_replicas() -> int:
    """Replicas of the pool that run."""
    deployment = serve.status().applications[APP].deployments[REPLICA]
    return deployment.replica_states.get("RUNNING", 0)


async def has_replicas(*numbers: int, timeout_s: float = 60.0) -> None:
    """Wait until so many run."""
    async with asyncio.timeout(timeout_s):
        while await asyncio.to_thread(num_replicas) not in numbers:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)


async def test_an_idle_model_ends_and_its_next_client_is_held_until_it_is_back(url: str):
    async with a_client(url) as client:
        answer = await client.post("/v1/completions", json=a_body("hello", max_tokens=20))
        assert answer.status_code == 200
        await has_replicas(0)
        assert (await client.get("/health")).status_code == 200
        began_at = time.monotonic()
        answer = await client.post("/v1/completions", json=a_body("again", max_tokens=20))
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == expected_text("again", 20)
        assert time.monotonic() - began_at < 40.0


async def test_a_backlog_gets_a_second_replica_and_a_calm_takes_it_away(url: str):
    prompts = [f"crowd{number}" for number in range(20)]
    async with a_client(url) as client:
        reading = [asyncio.create_task(stream_text(client, p, 1500)) for p in prompts]
        await has_replicas(2)
        assert await asyncio.gather(*reading) == [expected_text(p, 1500) for p in prompts]
    await has_replicas(0, 1)
