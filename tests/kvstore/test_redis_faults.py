"""What Redis can do to us, done to it: no wrong block, no stall, no leak, and it shows."""

import threading
import time

import pytest

from kvstore.redis_block_store import open_redis_block_store
from tests.kvstore.blocks import LAYOUT, all_same, chain, names, wanted
from tests.kvstore.redis_servers import RedisServer, free_port
from tests.kvstore.short_timeouts import BIG, FETCH_TIMEOUT_S, MARGIN_S, WRITE_TIMEOUT_S, config_of

pytestmark = pytest.mark.redis


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


def test_a_caller_may_wait_for_less_than_the_store_would(open_store, own_server):
    store, blocks = open_store(own_server.url, store_fetch_timeout_s=30.0), chain(2)
    store.put_many(blocks)
    own_server.pause()
    started_at = time.monotonic()
    assert store.get_many(wanted(blocks), timeout_s=0.2).ended_by == "timeout"
    assert time.monotonic() - started_at < 0.2 + MARGIN_S
    own_server.resume()


def test_writes_to_a_store_that_is_behind_are_dropped_and_counted(open_store, own_server):
    store, blocks = open_store(own_server.url, BIG), chain(200, layout=BIG)
    store.put_many(blocks[:1])
    own_server.pause()
    started_at = time.monotonic()
    report = store.put_many(blocks)
    assert time.monotonic() - started_at < WRITE_TIMEOUT_S + MARGIN_S
    assert report.num_held == 0
    assert report.failure == "timeout"
    assert store.stats().dropped_blocks > 100
    own_server.resume()


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
