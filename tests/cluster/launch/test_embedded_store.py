"""The embedded Valkey: closed to strangers, back after a death, gone with its starter."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import redis

from cluster.launch.embedded_store import EmbeddedStore
from kvstore.errors import StoreUnavailable
from kvstore.redis_store import server_info

pytestmark = pytest.mark.redis

MEMORY_BYTES = 8 * 1024 * 1024


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(memory_bytes=MEMORY_BYTES, folder=tmp_path) as store:
        store.start()
        yield store


def wait_for(is_so, *, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def answers(url):
    try:
        server_info(url, timeout_s=1.0)
    except StoreUnavailable:
        return False
    return True


def test_it_says_who_it_is_and_what_it_may_hold(store):
    info = server_info(store.url, timeout_s=1.0)
    assert info.name == "Valkey"
    assert (info.max_memory_bytes, info.max_memory_policy) == (MEMORY_BYTES, "allkeys-lru")
    assert info.warnings() == ()


def test_nobody_enters_without_the_password(store):
    address = store.url.rpartition("@")[2]
    with pytest.raises(StoreUnavailable, match="refuses this user or password"):
        server_info(f"redis://{address}", timeout_s=1.0)
    with pytest.raises(StoreUnavailable, match="refuses this user or password"):
        server_info(f"redis://:guess@{address}", timeout_s=1.0)


def test_its_command_line_does_not_show_the_password(store):
    password = store.url.split(":")[2].split("@")[0]
    assert password not in " ".join(psutil.Process(store.pid).cmdline())


def test_it_listens_on_loopback_alone(store):
    listening = [c.laddr.ip for c in psutil.Process(store.pid).net_connections()]
    assert set(listening) == {"127.0.0.1"}


def test_a_full_store_drops_old_values_and_takes_new_ones(store):
    client = redis.Redis.from_url(store.url)
    num_values = 3 * MEMORY_BYTES // 65536
    for number in range(num_values):
        client.set(f"block-{number}", b"x" * 65536)
    assert client.get(f"block-{number}") == b"x" * 65536
    # Which of them went is the server's choice: its clock counts whole seconds.
    assert client.dbsize() <= MEMORY_BYTES // 65536 < num_values
    client.close()


def test_it_comes_back_at_the_same_address_when_it_dies(store):
    first = store.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: store.pid not in (None, first) and answers(store.url))


def test_it_is_gone_after_close_and_close_may_be_repeated(store):
    server = psutil.Process(store.pid)
    store.close()
    store.close()
    assert not server.is_running()
    assert store.pid is None


def test_it_leaves_no_file_behind(store, tmp_path):
    client = redis.Redis.from_url(store.url)
    client.set("block", b"x")
    client.close()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_it_dies_when_its_starter_is_killed(tmp_path):
    code = f"""
import time
from pathlib import Path
from cluster.launch.embedded_store import EmbeddedStore
store = EmbeddedStore(memory_bytes={MEMORY_BYTES}, folder=Path({str(tmp_path)!r}))
store.start()
print(store.pid, flush=True)
time.sleep(60)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    server = psutil.Process(int(starter.stdout.readline()))
    starter.kill()
    starter.wait(timeout=10)
    _, alive = psutil.wait_procs([server], timeout=10)
    assert alive == []


def test_a_server_that_cannot_start_is_reported(tmp_path):
    store = EmbeddedStore(memory_bytes=MEMORY_BYTES, folder=tmp_path / "missing")
    with pytest.raises(StoreUnavailable, match="the embedded Valkey did not start"):
        store.start(timeout_s=0.5)
