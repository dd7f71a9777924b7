"""What one service wrote to Redis, the next one serves from there, with the same answer."""

import json
import time
import urllib.request

import pytest

from cluster import cli
from tests.kvstore.redis_servers import RedisServer

pytestmark = [pytest.mark.e2e, pytest.mark.redis]
PROMPT = "The rain in Spain stays mainly in the plain, or so the song has it. " * 8


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


def complete(base_url: str) -> dict:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    request = urllib.request.Request(
        f"{base_url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def figure(base_url: str, name: str, label: str) -> float:
    """The sum of a metric's series that bear a label."""
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith(name) and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def until(holds, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def test_the_next_service_finds_in_redis_what_the_last_one_computed(
    server, free_port, tmp_path, start_service, stop_service, capsys
):
    settings = ("--redis-url", server.url, "--store-write-back", "always", "--deterministic")
    first = start_service(*settings, port=free_port(), log=tmp_path / "first.log")
    before = complete(first.base_url)
    stored = "pagoda:store_blocks_total"
    until(lambda: figure(first.base_url, stored, 'outcome="stored"') >= 8)
    stop_service(first)

    assert cli.main(["store", "verify", "--redis-url", server.url]) == 0
    assert " 0 bad" in capsys.readouterr().out

    second = start_service(*settings, port=free_port(), log=tmp_path / "second.log")
    after = complete(second.base_url)
    assert after["choices"][0]["text"] == before["choices"][0]["text"]
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= 8 * 16
    until(lambda: figure(second.base_url, "pagoda:tier_hit_tokens_total", 'tier="store"') > 0)
    stop_service(second)
