"""Departures and deaths under load: nothing is left behind, and service goes on."""

import asyncio
import json
import random
import signal
import socket
import time

import httpx
import psutil
import pytest

pytestmark = pytest.mark.e2e
MODEL = "SmolLM2-135M-Instruct"
NUM_REQUESTS = 200


def cores(service):
    """Engine core processes of the service."""
    return [
        process
        for process in service.family()
        if process.is_running() and "replicas.engine_process" in " ".join(process.cmdline())
    ]


def body(index, **overrides):
    return {
        "model": MODEL,
        "prompt": f"Request {index} of a long day:",
        "max_tokens": 12,
        "temperature": 0.7,
        "seed": index,
        "ignore_eos": True,
        "stream": index % 2 == 0,
        **overrides,
    }


async def ask(client, index, leave_after_s):
    """One request; the client leaves after a while unless that is None. True if it saw the end."""
    try:
        async with asyncio.timeout(leave_after_s):
            answer = await client.post("/v1/completions", json=body(index))
    except TimeoutError:
        return False
    assert answer.status_code == 200, answer.text
    if index % 2 == 0:
        assert answer.text.rstrip().endswith("data: [DONE]")
    return True


async def round_of_requests(base_url, seed):
    rng = random.Random(seed)
    leaves = [rng.uniform(0.0, 2.0) if rng.random() < 0.3 else None for _ in range(NUM_REQUESTS)]
    limits = httpx.Limits(max_connections=NUM_REQUESTS)
    async with httpx.AsyncClient(base_url=base_url, timeout=180, limits=limits) as client:
        return await asyncio.gather(
            *(ask(client, index, after) for index, after in enumerate(leaves))
        )


def test_departures_leave_nothing_behind_and_memory_stays_flat(service, base_url):
    sizes = []
    for seed in range(3):
        ended = asyncio.run(round_of_requests(base_url, seed))
        assert sum(ended) >= 0.6 * NUM_REQUESTS
        sizes.append(serving_bytes(service))
    assert wait_for_rest(base_url), "requests are left in the cluster"
    assert sizes[-1] - sizes[1] < 32 * 1024 * 1024, sizes


def serving_bytes(service):
    """Resident memory of all processes but the core, which grows until its cache is full."""
    engines = cores(service)
    return sum(process.memory_info().rss for process in service.family() if process not in engines)


def wait_for_rest(base_url):
    """Whether a fresh request is served at once: no slot is taken by anyone who left."""
    started = time.monotonic()
    answer = httpx.post(f"{base_url}/v1/completions", json=body(1, max_tokens=1), timeout=60)
    return answer.status_code == 200 and time.monotonic() - started < 10


def num_aborted(base_url):
    lines = httpx.get(f"{base_url}/metrics", timeout=60).text.splitlines()
    counts = [line.split() for line in lines if line.startswith("vllm:request_success_total")]
    return sum(float(count) for name, count in counts if 'finished_reason="abort"' in name)


def test_the_departure_of_whoever_waits_for_a_whole_answer_is_noticed(base_url):
    # Head and body in packets of their own, as Python's clients send them.
    content = json.dumps(body(1, max_tokens=1800)).encode()
    address = httpx.URL(base_url)
    before = num_aborted(base_url)
    with socket.create_connection((address.host, address.port)) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        # Long enough for a packet of its own; then until its tokens are being computed.
        time.sleep(0.05)
        client.sendall(content)
        time.sleep(1.0)
    deadline = time.monotonic() + 10
    while num_aborted(base_url) == before:
        assert time.monotonic() < deadline, "nobody noticed that the client left"
        time.sleep(0.2)


def test_a_stream_goes_on_after_its_core_was_killed(service, base_url):
    (core,) = cores(service)
    asked = body(0, max_tokens=200, temperature=0.0)
    with httpx.stream("POST", f"{base_url}/v1/completions", json=asked, timeout=120) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        core.send_signal(signal.SIGKILL)
        frames = [line.removeprefix("data: ") for line in lines if line]
    assert frames[-1] == "[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert [process.pid for process in cores(service)] != [core.pid]
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(core.pid).cmdline()


def test_a_body_that_is_too_large_is_refused_through_the_whole_way(base_url):
    answer = httpx.post(f"{base_url}/v1/completions", content=b"x" * (10 << 20), timeout=60)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"
