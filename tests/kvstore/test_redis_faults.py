"""What Redis can do to us, done to it: no wrong block, no stall, no leak, and it shows."""

import dataclasses
import socket
import threading
import time

import pytest

from kvstore.block_store import BlockLayout
from kvstore.config import StoreConfig
from kvstore.redis_block_store import check_value_size, open_redis_block_store
from kvstore.redis_store import ServerInfo, server_info
from tests.kvstore.blocks import LAYOUT, all_same, chain, names, wanted
from tests.kvstore.redis_servers import RedisServer, free_port

pytestmark = pytest.mark.redis

FETCH_TIMEOUT_S = 0.4
WRITE_TIMEOUT_S = 0.6
# Beyond a time-out: waking up on a busy machine.
MARGIN_S = 0.5
BIG = BlockLayout("big", "bfloat16", num_layers=8, block_size=16, num_kv_heads=4, head_dim=64)


def config_of(url, **changes):
    settings = {
        "redis_url": url,
        "store_fetch_timeout_s": FETCH_TIMEOUT_S,
        "store_timeout_s": WRITE_TIMEOUT_S,
        "store_in_flight_bytes": 4 * 1024 * 1024,
    }
    return StoreConfig(**(settings | changes))


@pytest.fixture
def open_store():
    opened = []

    def open_one(url, layout=LAYOUT, **changes):
        opened.append(open_redis_block_store(config_of(url, **changes), layout=layout))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def lane_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("store-lane")]


def our_connections(server):
    return server.ask("CLIENT", "LIST").decode().count("name=pagoda")


class Load:
    """Threads that put and get, and note how long the longest call took and what was wrong."""

    def __init__(self, store, num_threads=3):
        self._store = store
        self._is_over = threading.Event()
        self.longest_s = 0.0
        self.num_hits = 0
        self.wrong = []
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def _timed(self, call):
        started_at = time.monotonic()
        result = call()
        self.longest_s = max(self.longest_s, time.monotonic() - started_at)
        return result

    def _work(self, number):
        turn = 0
        while not self._is_over.is_set():
            blocks = chain(6, first_token=10_000 * number + 100 * (turn % 7))
            turn += 1
            self._timed(lambda blocks=blocks: self._store.put_many(blocks))
            self._timed(
                lambda blocks=blocks: self._store.contains_prefix(names(blocks), lease="load")
            )
            found = self._timed(lambda blocks=blocks: self._store.get_many(wanted(blocks))).blocks
            self.num_hits += len(found)
            if not all_same(found, blocks[: len(found)]):
                self.wrong.append(blocks)
            time.sleep(0.002)

    def hits_during(self, seconds):
        before = self.num_hits
        time.sleep(seconds)
        return self.num_hits - before

    def stop(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def loaded(open_store, own_server):
    load = Load(open_store(own_server.url))
    yield load
    load.stop()


def until(holds, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_killed_and_restarted_under_load(loaded, own_server, caplog):
    assert loaded.hits_during(0.5) > 0
    own_server.kill()
    time.sleep(1.0)
    assert loaded.hits_during(0.3) == 0
    assert loaded._store.stats().is_open
    own_server.start()
    until(lambda: loaded.hits_during(0.1) > 0)
    loaded.stop()
    stats = loaded._store.stats()
    assert loaded.wrong == []
    assert loaded.longest_s < WRITE_TIMEOUT_S + MARGIN_S
    assert stats.errors["connection"] >= 3
    assert stats.short_circuits > 0
    lines = [record.message.split(" kind")[0] for record in caplog.records]
    assert [lines.count("store is away"), lines.count("store is back")] == [1, 1]
    assert our_connections(own_server) <= 2
    assert len(lane_threads()) == 2


@pytest.mark.slow
def test_paused_for_five_seconds_under_load(loaded, own_server, caplog):
    assert loaded.hits_during(0.5) > 0
    own_server.pause()
    time.sleep(1.5)
    num_calls_kept_away = loaded._store.stats().short_circuits
    assert loaded.hits_during(3.5) == 0
    assert loaded._store.stats().short_circuits > num_calls_kept_away
    own_server.resume()
    until(lambda: loaded.hits_during(0.1) > 0)
    loaded.stop()
    assert loaded.wrong == []
    assert loaded.longest_s < WRITE_TIMEOUT_S + MARGIN_S
    assert loaded._store.stats().errors["timeout"] >= 3
    assert "store is away kind=timeout" in caplog.text
    assert our_connections(own_server) <= 2
    assert len(lane_threads()) == 2


def test_a_store_that_is_away_at_the_start_is_a_miss_at_once(open_store, caplog):
    started_at = time.monotonic()
    store = open_store(f"redis://127.0.0.1:{free_port()}")
    for _ in range(5):
        assert store.get_many(wanted(chain(1))).blocks == ()
        assert store.put_many(chain(1)).num_held == 0
    assert time.monotonic() - started_at < FETCH_TIMEOUT_S + MARGIN_S
    assert "store is away url=redis://127.0.0.1" in caplog.text


def test_connections_that_were_cut_while_idle_are_opened_anew_and_nobody_notices(
    open_store, own_server
):
    store, blocks = open_store(own_server.url), chain(4)
    store.put_many(blocks)
    for _ in range(5):
        own_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert all_same(store.get_many(wanted(blocks)).blocks, blocks)
    assert store.stats().errors == {}


def test_opening_and_closing_leaves_no_thread_and_no_connection(own_server):
    for _ in range(20):
        store = open_redis_block_store(config_of(own_server.url), layout=LAYOUT)
        store.put_many(chain(3))
        store.close()
    assert lane_threads() == []
    until(lambda: our_connections(own_server) == 0)


def test_a_closed_store_answers_misses(open_store, own_server):
    store = open_store(own_server.url)
    store.close()
    assert store.get_many(wanted(chain(1))).blocks == ()
    assert store.put_many(chain(1)).num_held == 0


@pytest.fixture
def full_server(tmp_path):
    server = RedisServer(
        tmp_path, "--maxmemory", "24mb", "--maxmemory-policy", "noeviction"
    ).start()
    yield server
    server.stop()


def test_a_full_server_is_trimmed_and_pinned_blocks_stay(open_store, full_server, caplog):
    caplog.set_level("INFO")
    store = open_store(full_server.url, BIG, store_timeout_s=10.0, store_fetch_timeout_s=5.0)
    pinned = chain(8, layout=BIG)
    store.put_many(pinned)
    assert store.contains_prefix(names(pinned), lease="mine") == 8
    reports = [
        store.put_many(chain(8, first_token=1000 * turn, layout=BIG)) for turn in range(1, 40)
    ]
    assert reports[-1].is_complete
    stats = store.stats()
    assert stats.trimmed_blocks > 100
    assert not stats.is_open
    assert "store trimmed blocks=" in caplog.text
    assert all_same(store.get_many(wanted(pinned)).blocks, pinned)


def test_a_server_full_of_pinned_blocks_refuses_others_and_it_is_counted(open_store, full_server):
    store = open_store(full_server.url, BIG, store_timeout_s=10.0, store_fetch_timeout_s=5.0)
    held = []
    for turn in range(60):
        blocks = chain(4, first_token=1000 * turn, layout=BIG)
        report = store.put_many(blocks)
        if not report.is_complete:
            break
        store.pin(names(blocks), lease="mine")
        held.append(blocks)
    assert "full" in report.outcomes
    assert store.stats().full_blocks > 0
    assert not store.stats().is_open
    assert all(all_same(store.get_many(wanted(blocks)).blocks, blocks) for blocks in held)
    store.release("mine")
    assert store.put_many(chain(4, first_token=10**6, layout=BIG)).is_complete


def test_expired_leases_leave_no_key_on_the_server(open_store, own_server):
    store, blocks = open_store(own_server.url, store_lease_ttl_s=1.0), chain(50)
    store.put_many(blocks)
    for number in range(200):
        store.contains_prefix(names(blocks), lease=f"lease-{number}")
    assert own_server.ask("DBSIZE") == 100
    until(lambda: own_server.ask("DBSIZE") == 50)
    assert store.stats().num_leases == 0


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
