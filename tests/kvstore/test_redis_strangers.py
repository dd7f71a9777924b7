"""Servers that are no Redis, or not one that takes us: said by name, at the cost of a time-out."""

import dataclasses
import socket
import threading
import time

import pytest

from kvstore.block_store import BlockLayout
from kvstore.redis_block_store import check_value_size
from kvstore.redis_store import ServerInfo, server_info
from tests.kvstore.blocks import all_same, chain, names, wanted
from tests.kvstore.redis_servers import RedisServer
from tests.kvstore.short_timeouts import BIG, FETCH_TIMEOUT_S, MARGIN_S

pytestmark = pytest.mark.redis


class StrangeServer:
    """Answers the greeting like Redis, and then as the test wants."""

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._talk, args=(link,), daemon=True))
            self._threads[-1].start()

    def _talk(self, link):
        try:
            while words := link.recv(65536):
                if b"CLIENT" in words:
                    link.sendall(b"+OK\r\n" * words.count(b"CLIENT\r\n"))
                else:
                    self._answer(link)
        except OSError:
            pass
        finally:
            link.close()

    def close(self):
        self._listener.close()


def dribble(link):
    for byte in b"$100000\r\n" + bytes(1000):
        link.sendall(bytes([byte]))
        time.sleep(0.05)


def speak_http(link):
    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def promise_a_terabyte(link):
    link.sendall(b"$1000000000000\r\nabc")


def hang_up(link):
    link.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (dribble, "timeout"),
        (speak_http, "protocol"),
        (promise_a_terabyte, "protocol"),
        (hang_up, "connection"),
        (lambda link: link.sendall(b"-LOADING wait\r\n"), "busy"),
        (lambda link: link.sendall(b"-NOPERM no\r\n"), "refused"),
    ],
    ids=["dribble", "http", "terabyte", "hang_up", "loading", "forbidden"],
)
def test_whatever_answers_there_costs_one_time_out_at_most(open_store, answer, kind):
    server = StrangeServer(answer)
    store = open_store(server.url)
    started_at = time.monotonic()
    assert store.get_many(wanted(chain(3))).ended_by == kind
    assert time.monotonic() - started_at < FETCH_TIMEOUT_S + MARGIN_S
    assert store.stats().errors == {kind: 1}
    server.close()


def test_a_block_larger_than_the_servers_largest_value_is_refused_at_the_start(
    open_store, tmp_path
):
    server = RedisServer(tmp_path, "--proto-max-bulk-len", "1mb").start()
    try:
        huge = dataclasses.replace(BIG, num_layers=64)
        with pytest.raises(ValueError, match="block_size=16.*proto-max-bulk-len is 1048576"):
            open_store(server.url, huge)
    finally:
        server.stop()


def test_a_block_beyond_512_mb_is_refused_without_asking():
    with pytest.raises(ValueError, match="expected smaller blocks"):
        check_value_size(
            BlockLayout("m", "float32", 128, 1024, 64, 128), max_bulk_bytes=512 * 1024 * 1024
        )


@pytest.mark.parametrize(
    ("policy", "has_warning"),
    [("allkeys-lru", True), ("volatile-ttl", True), ("noeviction", False)],
)
def test_a_policy_that_can_drop_pinned_blocks_is_named(policy, has_warning):
    info = ServerInfo("Valkey", "9", 1 << 30, policy)
    assert info.can_drop_pinned == has_warning
    assert any(policy in warning for warning in info.pin_warnings()) == has_warning


def test_opening_warns_by_name_about_a_policy_that_can_drop_pinned_blocks(
    open_store, own_server, caplog
):
    own_server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lfu")
    open_store(own_server.url)
    assert "maxmemory-policy is allkeys-lfu" in caplog.text


def test_an_acl_user_needs_our_keys_and_neither_config_nor_scripts(open_store, own_server):
    own_server.ask(
        *("ACL", "SETUSER", "kv", "on", ">pw", "~pagoda:*", "+@all", "-@admin", "-@scripting")
    )
    own_server.ask("CONFIG", "SET", "requirepass", "other")
    url = own_server.url.replace("redis://", "redis://kv:pw@")
    store, blocks = open_store(url), chain(3)
    assert store.put_many(blocks).is_complete
    assert store.contains_prefix(names(blocks), lease="mine") == 3
    assert all_same(store.get_many(wanted(blocks)).blocks, blocks)
    assert len(list(store.scan())) == 3


def test_a_wrong_password_is_refused_and_says_so(open_store, own_server, caplog):
    own_server.ask("CONFIG", "SET", "requirepass", "right")
    store = open_store(own_server.url.replace("redis://", "redis://:wrong@"))
    assert store.get_many(wanted(chain(1))).ended_by == "refused"
    assert "refuses this user or password" in caplog.text
    assert "wrong" not in caplog.text


def test_the_server_says_who_it_is(own_server):
    info = server_info(own_server.url, timeout_s=5.0)
    assert info.name == "Valkey"
    assert info.max_bulk_bytes == 512 * 1024 * 1024
