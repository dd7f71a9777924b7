"""Tables of hand-offs are there until they end or are removed, in memory as in Redis."""

import time

import pytest

from kvstore.errors import StoreUnavailable
from kvstore.handoff_tables import MemoryHandoffTables
from kvstore.redis_block_store import open_lanes, open_redis_handoff_tables
from kvstore.redis_handoff_tables import RedisHandoffTables
from kvstore.store_admin import StoreAdmin
from tests.kvstore.blocks import LAYOUT
from tests.kvstore.short_timeouts import config_of

KEY = bytes(range(32))
TAIL = (b"head", b"keys", b"values")


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def tables(request):
    if request.param == "memory":
        made = MemoryHandoffTables(clock=time.monotonic)
    else:
        server = request.getfixturevalue("empty_valkey")
        made = open_redis_handoff_tables(config_of(server.url), layout=LAYOUT)
    yield made
    made.close()


def test_a_table_and_its_tail_come_back(tables):
    tables.put_tail(KEY, TAIL, ttl_s=10.0)
    tables.put(KEY, b"table", ttl_s=10.0)
    assert tables.get(KEY, timeout_s=1.0) == b"table"
    assert tables.get_tail(KEY, timeout_s=1.0) == b"headkeysvalues"


def test_an_unknown_table_is_none(tables):
    assert tables.get(KEY, timeout_s=1.0) is None
    assert tables.get_tail(KEY, timeout_s=1.0) is None


def test_a_table_ends_by_itself_with_its_tail(tables):
    tables.put_tail(KEY, TAIL, ttl_s=0.05)
    tables.put(KEY, b"table", ttl_s=0.05)
    time.sleep(0.1)
    assert tables.get(KEY, timeout_s=1.0) is None
    assert tables.get_tail(KEY, timeout_s=1.0) is None


def test_a_deleted_table_is_gone_with_its_tail(tables):
    tables.put_tail(KEY, TAIL, ttl_s=10.0)
    tables.put(KEY, b"table", ttl_s=10.0)
    tables.delete(KEY)
    tables.delete(KEY)
    assert tables.get(KEY, timeout_s=1.0) is None
    assert tables.get_tail(KEY, timeout_s=1.0) is None


@pytest.mark.redis
def test_a_server_that_is_gone_is_said_to_be_unavailable(own_server):
    tables = open_redis_handoff_tables(config_of(own_server.url), layout=LAYOUT)
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        tables.get(KEY, timeout_s=0.2)
    with pytest.raises(StoreUnavailable):
        tables.put(KEY, b"table", ttl_s=1.0)
    tables.close()


@pytest.mark.redis
def test_a_full_server_refuses_a_table(own_server):
    tables = open_redis_handoff_tables(config_of(own_server.url), layout=LAYOUT)
    own_server.ask("CONFIG", "SET", "maxmemory", "1")
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    with pytest.raises(StoreUnavailable):
        tables.put(KEY, b"table", ttl_s=1.0)
    tables.close()


@pytest.mark.redis
def test_tables_are_not_taken_for_blocks(empty_valkey):
    lanes = open_lanes(config_of(empty_valkey.url))
    tables = RedisHandoffTables(lanes, timeout_s=1.0, max_tail_bytes=1 << 20)
    tables.put_tail(KEY, TAIL, ttl_s=10.0)
    tables.put(KEY, b"table", ttl_s=10.0)
    assert StoreAdmin(lanes, timeout_s=1.0).show() == ()
    tables.close()
