"""What a real server can do to engines that share it: no wrong token, no stall, no leak."""

import threading
import time

import pytest

from kvstore.block_hash import block_hashes
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_lanes, open_redis_block_store
from kvstore.redis_keys import block_key
from kvstore.store_admin import StoreAdmin
from replicas.engine import Engine
from tests.kvstore.redis_servers import RedisServer
from tests.replicas.engine_harness import alone, prompt, request, run, submit, tokens
from tests.replicas.memory.stores import Engines, serve, settle, simulated_layout

pytestmark = pytest.mark.redis

FETCH_TIMEOUT_S = 0.3
MARGIN_S = 1.0
PROMPT = prompt(26)


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


def config_of(server: RedisServer) -> StoreConfig:
    return StoreConfig(
        redis_url=server.url, store_timeout_s=0.5, store_fetch_timeout_s=FETCH_TIMEOUT_S
    )


@pytest.fixture
def engines(server):
    made = Engines(lambda: open_redis_block_store(config_of(server), layout=simulated_layout()))
    yield made
    made.close()


def ask(name: str, ids: list[int] = PROMPT, **kwargs: object):
    return request(name, ids, max_tokens=6, **kwargs)


def answers_right(target: Engine, *requests) -> float:
    """Seconds that they took together; every token must be as without a store."""
    started_at = time.monotonic()
    submit(target, *requests)
    found = tokens(run(target))
    took_s = time.monotonic() - started_at
    for one in requests:
        assert found[one.request_id, 0] == alone(one)[one.request_id, 0]
    return took_s


def fill(engines: Engines) -> None:
    """One engine has written a prompt's blocks and is gone."""
    first = engines.start()
    serve(first, ask("first"))
    assert first.stats.tiers.stored_blocks_total == 7
    first.close()


def first_key(server: RedisServer, index: int) -> bytes:
    one = ask("x")
    names = list(block_hashes(one.prompt_token_ids, block_size=4, root=one.root))
    return block_key(simulated_layout().namespace, names[index])


def test_a_second_engine_finds_in_the_server_what_the_first_computed(engines):
    fill(engines)
    second = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    answers_right(second, ask("b"))
    assert second.stats.tiers.store_hit_tokens_total == 24
    second.close()


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda value: value[:-1] + bytes([value[-1] ^ 1]), "damaged"),
        (lambda value: value[: len(value) // 2], "truncated"),
        (lambda value: b"not a block of ours" * 9, "foreign"),
    ],
)
def test_a_value_that_is_not_what_was_written_is_a_miss_and_is_removed(
    engines, server, caplog, damage, kind
):
    fill(engines)
    key = first_key(server, 2)
    server.ask("SET", key, damage(server.ask("GET", key)))
    second = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    answers_right(second, ask("b"))
    assert second.stats.tiers.store_hit_tokens_total == 8
    assert second.stats.tiers.short_fetches_total == 1
    assert caplog.text.count("block corrupt") + caplog.text.count("corrupt") >= 1
    second.close()


def test_a_value_of_other_tokens_under_our_name_is_never_served(engines, server):
    fill(engines)
    server.ask("SET", first_key(server, 1), server.ask("GET", first_key(server, 0)))
    second = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    answers_right(second, ask("b"))
    assert second.stats.tiers.store_hit_tokens_total == 4
    second.close()


def test_a_paused_server_costs_each_request_its_timeout_at_most(engines, server):
    fill(engines)
    second = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    server.pause()
    try:
        for number in range(3):
            took_s = answers_right(second, ask(f"r{number}", prompt(26, seed=number + 5)))
            assert took_s < FETCH_TIMEOUT_S + MARGIN_S
    finally:
        server.resume()
    settle(second)
    second.close()


def test_a_killed_server_is_a_miss_and_a_restarted_one_serves_again(engines, server, caplog):
    target = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    answers_right(target, ask("a"))
    server.kill()
    deadline, number = time.monotonic() + 20.0, 0
    # What a request computes is written behind it, and only that need touch the store.
    while number < 4 or "store is away" not in caplog.text:
        assert time.monotonic() < deadline, "nobody noticed that the store is away"
        number += 1
        took_s = answers_right(target, ask(f"r{number}", prompt(26, seed=number + 5)))
        assert took_s < FETCH_TIMEOUT_S + MARGIN_S
    assert caplog.text.count("store is away") == 1
    server.start()
    deadline = time.monotonic() + 10.0
    stored_before = target.stats.tiers.stored_blocks_total
    number = 100
    while target.stats.tiers.stored_blocks_total == stored_before:
        assert time.monotonic() < deadline, "the store is not used again"
        number += 1
        answers_right(target, ask(f"s{number}", prompt(26, seed=number)))
        time.sleep(0.05)
    settle(target)
    target.close()


def test_a_full_server_drops_writes_and_everybody_is_served(engines, server):
    server.ask("CONFIG", "SET", "maxmemory", "1")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    target = engines.start(fetch_timeout_s=FETCH_TIMEOUT_S)
    for number in range(3):
        answers_right(target, ask(f"r{number}", prompt(26, seed=number)))
    settle(target)
    assert target.stats.tiers.stored_blocks_total == 0
    assert target.stats.tiers.num_pinned_host_slots == 0
    target.close()


@pytest.mark.slow
def test_engines_under_load_while_the_server_comes_and_goes_give_right_tokens(engines, server):
    targets = [
        engines.start(
            fetch_timeout_s=FETCH_TIMEOUT_S,
            num_blocks=28,
            preemption_mode="auto",
            async_scheduling=True,
        )
        for _ in range(2)
    ]
    wrong: list[BaseException] = []

    def load(target: Engine, first_seed: int) -> None:
        try:
            for turn in range(25):
                crowd = [
                    ask(f"t{turn}r{i}", prompt(9 + i, seed=(turn + i) % 9), seed=first_seed + i)
                    for i in range(8)
                ]
                assert answers_right(target, *crowd) < 8 * (FETCH_TIMEOUT_S + MARGIN_S)
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=load, args=(t, 7 * i)) for i, t in enumerate(targets)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.3)
        server.kill()
        time.sleep(0.2)
        server.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for target in targets:
        settle(target)
        target.close()
    lanes = open_lanes(config_of(server))
    assert StoreAdmin(lanes, timeout_s=5.0).verify().bad == ()
    lanes.close()
