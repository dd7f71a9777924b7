"""Servers and stores of the tests of kvstore."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.block_codec import largest_value_bytes
from kvstore.coded_block_store import CodedBlockStore
from kvstore.memory_store import Memory, memory_store
from kvstore.redis_block_store import open_redis_block_store
from kvstore.redis_keys import block_key, pins_key
from kvstore.redis_lanes import RedisLanes
from kvstore.redis_routes import routes_to
from kvstore.redis_shelf import RedisShelf, ShelfLimits
from kvstore.redis_store import TlsFiles
from tests.kvstore.blocks import LAYOUT
from tests.kvstore.redis_servers import RedisServer
from tests.kvstore.short_timeouts import config_of


class StoreBench:
    """What the contract tests need beside a store: more stores, and a hand on what lies below."""

    def __init__(self) -> None:
        self._opened: list[CodedBlockStore] = []

    def open(self, layout=LAYOUT, *, lease_ttl_s=30.0, ttl_s=0.0) -> CodedBlockStore:
        store = self._make(layout, lease_ttl_s, ttl_s)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


class MemoryBench(StoreBench):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._memory: Memory | None = None

    def pass_time(self, seconds):
        self.now += seconds

    def _make(self, layout, lease_ttl_s, ttl_s):
        clock = self._clock
        self._memory = self._memory or Memory(max_bytes=1 << 26, clock=clock, ttl_s=ttl_s)
        return memory_store(self._memory, layout=layout, clock=clock, lease_ttl_s=lease_ttl_s)

    def _clock(self):
        return self.now

    def value(self, name, layout=LAYOUT):
        return self._memory.find((layout.namespace, name))

    def replace(self, name, content, layout=LAYOUT):
        self._memory.replace((layout.namespace, name), content)

    def is_pinned(self, name, layout=LAYOUT):
        return self._memory.is_pinned((layout.namespace, name))


class RedisBench(StoreBench):
    """Time passes by itself."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.server = server

    def pass_time(self, seconds):
        time.sleep(seconds)

    def _make(self, layout, lease_ttl_s, ttl_s):
        limits = ShelfLimits(5.0, 5.0, largest_value_bytes(layout), ttl_s)
        lanes = RedisLanes(
            routes_to(self.server.url, tls=TlsFiles(), clock=time.monotonic),
            num_lanes=2,
            chunk_bytes=1 << 20,
            clock=time.monotonic,
        )
        shelf = RedisShelf(lanes, namespace=layout.namespace, limits=limits, clock=time.monotonic)
        return CodedBlockStore(shelf, layout=layout, clock=time.monotonic, lease_ttl_s=lease_ttl_s)

    def value(self, name, layout=LAYOUT):
        return self.server.ask("GET", block_key(layout.namespace, name))

    def replace(self, name, content, layout=LAYOUT):
        self.server.ask("SET", block_key(layout.namespace, name), content)

    def is_pinned(self, name, layout=LAYOUT):
        return self.server.ask("EXISTS", pins_key(block_key(layout.namespace, name))) == 1


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Valkey that the tests share; each begins with an empty one (`empty_valkey`)."""
    server = RedisServer(tmp_path_factory.mktemp("valkey")).start()
    yield server
    server.stop()


@pytest.fixture
def empty_valkey(valkey: RedisServer) -> RedisServer:
    valkey.ask("FLUSHALL")
    return valkey


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Valkey that a test may kill, pause or fill."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def bench(request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    if request.param == "memory":
        made: StoreBench = MemoryBench()
    else:
        made = RedisBench(request.getfixturevalue("empty_valkey"))
    yield made
    made.close()


@pytest.fixture
def open_store():
    opened = []

    def open_one(url, layout=LAYOUT, **changes):
        opened.append(open_redis_block_store(config_of(url, **changes), layout=layout))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
