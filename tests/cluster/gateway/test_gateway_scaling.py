"""Long streams while gateways come and go: each change of their set starts another HAProxy."""

import asyncio
import time
from dataclasses import replace

import httpx
import psutil
import pytest
from ray import serve

from cluster.app import compose
from cluster.config import ClusterConfig
from cluster.replica.scripted_engine import EngineScript, StartScriptedEngine
from tests.cluster.replica_harness import until
from tests.cluster.running_service import APP, REPLICA, running_service
from tests.cluster.test_serve_app import expected_text, processes_named, stream_text
from tests.cluster.tiny_model import NUM_PRINTABLE

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

# Longer than the two minutes after which Serve's HAProxy would cut what ran through the last one.
STREAM_S = 180.0
STEP_S = 0.25
SCRIPT = EngineScript(step_s=STEP_S, vocab_size=NUM_PRINTABLE - 1, fingerprint="f00d")


def num_gateways() -> int:
    return sum(
        process.status() != psutil.STATUS_ZOMBIE
        for process in processes_named(f"ServeReplica:{APP}:gateway")
    )


def scale(config: ClusterConfig, to: int) -> asyncio.Task[object]:
    """Ends when Serve has that many, the leaving ones gone."""
    changed = replace(config, gateway=replace(config.gateway, num_gateways=to))
    app = compose(changed, start_engine=StartScriptedEngine(SCRIPT))
    return asyncio.create_task(asyncio.to_thread(serve.run, app, name=APP))


async def test_streams_of_three_minutes_survive_two_changes_of_the_gateways(free_port):
    patient = replace(REPLICA, drain_timeout_s=300.0)
    num_tokens = int(STREAM_S / STEP_S)
    with running_service(free_port, script=SCRIPT, replica=patient) as config:
        url = f"http://127.0.0.1:{config.gateway.port}"
        async with httpx.AsyncClient(base_url=url, timeout=20.0) as client:

            def stream(name: str) -> asyncio.Task[str]:
                return asyncio.create_task(stream_text(client, name, num_tokens))

            started_at = time.monotonic()
            streams = {name: stream(name) for name in ("a", "b")}
            await asyncio.sleep(5.0)
            growing = scale(config, 2)
            await until(lambda: num_gateways() == 2, timeout_s=60)
            await asyncio.sleep(5.0)
            # Some of these go through the gateway that is about to leave.
            streams |= {name: stream(name) for name in ("c", "d", "e", "f")}
            await asyncio.sleep(5.0)
            shrinking = scale(config, 1)
            texts = dict(zip(streams, await asyncio.gather(*streams.values()), strict=True))
            assert texts == {name: expected_text(name, num_tokens) for name in streams}
            assert time.monotonic() - started_at > STREAM_S
            await until(lambda: num_gateways() == 1, timeout_s=90)
            await asyncio.gather(growing, shrinking)
