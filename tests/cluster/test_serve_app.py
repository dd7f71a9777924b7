"""The whole service on a real Ray and Serve, with HAProxy and the scripted engine behind it."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx
import psutil
import pytest
from ray import serve
from ray.serve._private.constants import (
    RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT as LAST_DIRECT_PORT,
)
from ray.serve._private.constants import (
    RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT as FIRST_DIRECT_PORT,
)

from cluster.app import REPLICA, compose
from cluster.cluster_secret import cluster_secret
from cluster.config import ClusterConfig
from cluster.dispatch.replica_directory import ReplicaDirectory
from cluster.dispatch.serve_dispatcher import ServeDispatcher
from cluster.dispatch.serve_router_adapter import ServeCaller, follow_replicas
from cluster.errors import ReplicaLost, RequestRefused
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.replica.scripted_engine import EngineScript, StartScriptedEngine
from router.config import RouterConfig
from tests.cluster.replica_harness import a_gateway, a_request, read_all, until
from tests.cluster.running_service import APP, running_service
from tests.cluster.running_service import REPLICA as REPLICA_CONFIG
from tests.cluster.tiny_model import (
    NAME,
    NUM_PRINTABLE,
    text_of,
    token_id_of,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CRASH = "~"
SCRIPT = EngineScript(
    step_s=0.005,
    vocab_size=NUM_PRINTABLE - 1,
    max_open=40,
    crash_token_id=token_id_of(CRASH),
    fingerprint="f00d",
)


@pytest.fixture(scope="module")
def config(free_port) -> Iterator[ClusterConfig]:
    """A running service of one gateway and two replicas."""
    with running_service(
        free_port, script=SCRIPT, replica=replace(REPLICA_CONFIG, num_replicas=2)
    ) as config:
        yield config


@pytest.fixture
def url(config: ClusterConfig) -> str:
    """The address of its endpoint."""
    return f"http://127.0.0.1:{config.gateway.port}"


@asynccontextmanager
async def another_gateway() -> AsyncIterator[tuple[ServeDispatcher, ReplicaDirectory]]:
    """A gateway in this process, beside the deployed one, that sees what the replicas report."""
    handle = serve.get_deployment_handle(REPLICA, APP)
    _, directory, dispatcher = a_gateway(
        ServeCaller(handle),
        gateway_id="test",
        secret=cluster_secret(os.environ),
        config=RouterConfig(),
    )
    await follow_replicas(handle, directory)
    await until(lambda: directory.health().num_replicas == 2, timeout_s=20)
    try:
        yield dispatcher, directory
    finally:
        await dispatcher.close()
        await directory.close()


def num_open(directory: ReplicaDirectory) -> list[int]:
    return sorted(link.report.num_open_requests for link in directory.links.values())


def epochs(directory: ReplicaDirectory) -> set[int]:
    return {link.report.epoch for link in directory.links.values()}


def states(directory: ReplicaDirectory) -> list[str]:
    return sorted(link.status().state for link in directory.links.values())


def a_body(prompt: str, *, max_tokens: int = 20, stream: bool = False) -> dict[str, object]:
    return {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "stream": stream}


def expected_text(prompt: str, max_tokens: int) -> str:
    start = sum(token_id_of(character) for character in prompt)
    return text_of([(start + index) % SCRIPT.vocab_size for index in range(max_tokens)])


async def stream_text(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> str:
    """Read one stream; a frame with an error is part of the text."""
    text = ""
    body = a_body(prompt, max_tokens=max_tokens, stream=True)
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                frame = json.loads(line.removeprefix("data: "))
                if "error" in frame:
                    return f"{text} error: {frame['error']['message']}"
                text += "".join(choice["text"] for choice in frame["choices"])
    return text


def a_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=url, timeout=20.0, limits=limits)


def processes_named(part: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie, which is one of those
            if part in "".join(process.cmdline()[:1]):
                found.append(process)
    return found


async def test_a_request_is_answered_over_http(url: str):
    async with a_client(url) as client:
        answer = await client.post("/v1/completions", json=a_body("hello", max_tokens=30))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == expected_text("hello", 30)


def _can_be_shared(port: int) -> bool:
    """Whether another process of this user may listen there too, and get a part of what comes."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def test_no_other_service_can_take_a_part_of_the_requests(config: ClusterConfig):
    fallback = int(os.environ["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"])
    listening = {
        connection.laddr.port
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    direct = {port for port in listening if FIRST_DIRECT_PORT <= port <= LAST_DIRECT_PORT}
    assert {config.gateway.port, fallback} <= listening
    assert direct
    # Others are given out by the kernel, which gives none twice.
    named = {config.gateway.port, fallback, *direct}
    assert [port for port in named if _can_be_shared(port)] == []


async def test_many_streams_at_once_each_get_their_own_tokens_in_order(url: str):
    prompts = [f"stream{number}" for number in range(32)]
    async with a_client(url) as client:
        texts = await asyncio.gather(*(stream_text(client, prompt, 60) for prompt in prompts))
    assert texts == [expected_text(prompt, 60) for prompt in prompts]


async def test_a_handle_outside_of_serve_gets_tokens_and_two_replicas_share_the_load(url: str):
    async with another_gateway() as (dispatcher, directory):
        await until(lambda: num_open(directory) == [0, 0], timeout_s=5)
        requests = [a_request(f"r{number}", max_tokens=400) for number in range(20)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        await until(lambda: num_open(directory) == [10, 10])
        tokens = await asyncio.gather(*(read_all(feed) for feed in feeds))
        assert [len(by_choice[0]) for by_choice in tokens] == [400] * 20
        for feed in feeds:
            await feed.close()
        await until(lambda: num_open(directory) == [0, 0])


async def test_leaving_reaches_the_engine_within_a_step(url: str):
    async with another_gateway() as (dispatcher, directory):
        feed = await dispatcher.open(a_request(max_tokens=100_000))
        await anext(aiter(feed))
        left_at = time.monotonic()
        await feed.close()
        await until(lambda: num_open(directory) == [0, 0])
        assert time.monotonic() - left_at < 2.0
        await until(
            lambda: any(link.report.stats.cancelled_total for link in directory.links.values())
        )


async def test_a_client_that_disconnects_ends_its_request(url: str):
    async with another_gateway() as (_, directory), a_client(url) as client:
        await until(lambda: num_open(directory) == [0, 0], timeout_s=5)
        body = a_body("bye", max_tokens=2000, stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_lines())
            await until(lambda: num_open(directory) == [0, 1])
        await until(lambda: num_open(directory) == [0, 0])


async def test_a_full_cluster_answers_429_with_a_time_to_come_back(url: str):
    async with another_gateway() as (dispatcher, _), a_client(url) as client:
        requests = [a_request(f"full{number}", max_tokens=100_000) for number in range(80)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        with pytest.raises(RequestRefused):
            await dispatcher.open(a_request("one-more"))
        answer = await client.post("/v1/completions", json=a_body("late"))
        assert answer.status_code == 429
        assert float(answer.headers["retry-after"]) > 0
        await asyncio.gather(*(feed.close() for feed in feeds))


async def test_concurrent_calls_of_one_context_do_not_wait_for_each_other(url: str):
    # Serve takes the request id from the context: without a context of its own for each call, all
    # but one of them would wait for ever.
    async with a_client(url) as client:
        body = {**a_body("x", max_tokens=5), "prompt": ["a", "b", "c", "d"], "n": 2}
        answer = await client.post("/v1/completions", json=body)
    assert [choice["text"] for choice in answer.json()["choices"]] == [
        text_of([(token_id_of(prompt) + 31 * n + i) % SCRIPT.vocab_size for i in range(5)])
        for prompt in "abcd"
        for n in range(2)
    ]


async def test_a_dead_core_is_an_error_at_once_and_the_service_goes_on(url: str):
    async with another_gateway() as (dispatcher, directory), a_client(url) as client:
        requests = [a_request(f"r{number}", max_tokens=100_000) for number in range(8)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        reading = [asyncio.create_task(read_all(feed)) for feed in feeds]
        crashed_at = time.monotonic()
        # Both replicas are tried with the deadly prompt, so both cores die.
        answer = await client.post("/v1/completions", json=a_body(CRASH))
        assert answer.status_code in (502, 503)
        outcomes = await asyncio.gather(*reading, return_exceptions=True)
        assert time.monotonic() - crashed_at < 2.0
        assert [type(outcome) for outcome in outcomes] == [ReplicaLost] * 8
        for feed in feeds:
            await feed.close()
        # The deaths reach this gateway on other streams than the one that was just answered.
        await until(lambda: epochs(directory) == {2}, timeout_s=30)
        await until(lambda: directory.health().num_replicas == 2, timeout_s=10)
        answer = await client.post("/v1/completions", json=a_body("again", max_tokens=5))
        assert answer.json()["choices"][0]["text"] == expected_text("again", 5)


async def test_a_killed_gateway_leaves_nothing_running_and_is_replaced(url: str):
    async with another_gateway() as (_, directory), a_client(url) as client:
        body = a_body("orphan", max_tokens=2000, stream=True)
        with pytest.raises(httpx.HTTPError):  # noqa: PT012 - the stream breaks while it is read
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                await anext(lines)
                for process in processes_named("ServeReplica:pagoda:gateway"):
                    process.send_signal(signal.SIGKILL)
                async for _line in lines:
                    pass
        await until(lambda: num_open(directory) == [0, 0], timeout_s=5)

        async def answers() -> bool:
            answer = await client.post("/v1/completions", json=a_body("back", max_tokens=5))
            return answer.status_code == 200

        async with asyncio.timeout(30):
            while not await answers():  # noqa: ASYNC110 - another process comes back
                await asyncio.sleep(0.2)


async def test_a_killed_replica_costs_its_own_requests_and_no_others(url: str):
    async with another_gateway() as (dispatcher, directory), a_client(url) as client:
        requests = [a_request(f"k{number}", max_tokens=600) for number in range(10)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        reading = [asyncio.create_task(read_all(feed)) for feed in feeds]
        killed_at = time.monotonic()
        processes_named("ServeReplica:pagoda:replica")[0].send_signal(signal.SIGKILL)
        await until(lambda: any(task.done() for task in reading), timeout_s=10.0)
        assert time.monotonic() - killed_at < 2.0
        texts = await asyncio.gather(*(stream_text(client, f"p{n}", 20) for n in range(10)))
        assert texts == [expected_text(f"p{n}", 20) for n in range(10)]
        outcomes = await asyncio.gather(*reading, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ReplicaLost, dict}
        for feed in feeds:
            await feed.close()
        await until(lambda: directory.health().num_replicas == 2, timeout_s=30)


async def test_streams_go_on_after_their_replica_was_killed(url: str):
    async with another_gateway() as (_, directory), a_client(url) as client:
        texts = [asyncio.create_task(stream_text(client, f"s{n}", 600)) for n in range(12)]
        await until(lambda: min(num_open(directory), default=0) > 0)
        processes_named("ServeReplica:pagoda:replica")[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*texts) == [expected_text(f"s{n}", 600) for n in range(12)]
        await until(lambda: directory.health().num_replicas == 2, timeout_s=30)


async def test_a_request_that_names_a_replica_that_left_is_given_back(url: str):
    async with another_gateway() as (_, directory):
        handle = serve.get_deployment_handle(REPLICA, APP)
        told: list[tuple[str, str, int, str]] = []
        await follow_replicas(handle, Listening(told))
        route = ReplicaRoute("nobody", directory.gateway_id)
        call = ServeCaller(handle)(a_request("lost", max_tokens=1), route)
        await until(lambda: bool(told))
        assert told[0][:3] == ("nobody", "lost", 0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


class Listening:
    """A RoutingListener that only notes what was given back."""

    def __init__(self, told: list[tuple[str, str, int, str]]) -> None:
        self._told = told

    def on_replica_set(self, replicas: object) -> None:
        pass

    def on_not_routed(self, *what: object) -> None:
        self._told.append(what)


async def test_a_replica_that_is_scaled_away_finishes_what_it_has(config: ClusterConfig, url: str):
    async with another_gateway() as (dispatcher, directory), a_client(url) as client:
        requests = [a_request(f"d{number}", max_tokens=400) for number in range(10)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        reading = [asyncio.create_task(read_all(feed)) for feed in feeds]
        before = set(directory.links)
        smaller = replace(config, replica=replace(config.replica, num_replicas=1))
        app = compose(smaller, start_engine=StartScriptedEngine(SCRIPT))
        scaling = asyncio.create_task(asyncio.to_thread(serve.run, app, name=APP))
        await until(lambda: "draining" in states(directory), timeout_s=10)
        assert not any(task.done() for task in reading)
        texts = await asyncio.gather(*(stream_text(client, f"s{n}", 20) for n in range(10)))
        assert texts == [expected_text(f"s{n}", 20) for n in range(10)]
        tokens = await asyncio.gather(*reading)
        assert [len(by_choice[0]) for by_choice in tokens] == [400] * 10
        for feed in feeds:
            await feed.close()
        await until(lambda: states(directory) == ["active"], timeout_s=10)
        assert set(directory.links) < before
        await scaling
