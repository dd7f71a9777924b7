"""Showing, verifying and emptying a store, by hand and while others write."""

import dataclasses
import subprocess
import sys
import threading
import time

import pytest

from kvstore.__main__ import main
from kvstore.block_codec import encode
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_lanes, open_redis_block_store
from kvstore.redis_keys import block_key, pattern, pins_key, split_key
from kvstore.store_admin import StoreAdmin
from tests.kvstore.blocks import LAYOUT, chain, names, wanted

OTHER = dataclasses.replace(LAYOUT, fingerprint="beef" * 16)


@pytest.fixture
def admin(empty_valkey):
    lanes = open_lanes(StoreConfig(redis_url=empty_valkey.url))
    yield StoreAdmin(lanes, timeout_s=10.0)
    lanes.close()


@pytest.fixture
def store(empty_valkey):
    store = open_redis_block_store(StoreConfig(redis_url=empty_valkey.url), layout=LAYOUT)
    yield store
    store.close()


@pytest.fixture
def two_models(empty_valkey, store):
    """Three blocks of one model, two of another, and a key of somebody else."""
    store.put_many(chain(3))
    other = open_redis_block_store(StoreConfig(redis_url=empty_valkey.url), layout=OTHER)
    other.put_many(chain(2, layout=OTHER))
    other.close()
    empty_valkey.ask("SET", "pagoda:else", "x")
    return empty_valkey


def run(server, *arguments):
    return main([*arguments], {"REDIS_URL": server.url})


def test_a_key_can_be_read_back():
    name = bytes(range(32))
    key = block_key(LAYOUT.namespace, name)
    assert split_key(key) == (LAYOUT.namespace, name)
    assert split_key(pins_key(key)) is None
    assert split_key(b"pagoda:else") is None
    assert split_key(b"other:" + key) is None
    assert pattern() == b"pagoda:*:{*}"


@pytest.mark.redis
def test_show_counts_blocks_and_bytes_of_each_model(two_models, admin):
    first, second = admin.show()
    assert (first.namespace, first.num_blocks) == (LAYOUT.namespace, 3)
    assert (second.fingerprint, second.num_blocks) == (OTHER.fingerprint, 2)
    assert first.num_bytes * 2 == second.num_bytes * 3
    assert admin.show(OTHER.fingerprint) == (second,)


@pytest.mark.redis
def test_verify_reads_every_byte_and_names_what_is_bad(two_models, admin, caplog):
    assert (admin.verify().num_whole, admin.verify().bad) == (5, ())
    blocks = chain(3)
    keys = [block_key(LAYOUT.namespace, name) for name in names(blocks)]
    value = two_models.ask("GET", keys[0])
    two_models.ask("SET", keys[0], value[:-1] + bytes([value[-1] ^ 1]))
    two_models.ask("SET", keys[1], value[:100])
    two_models.ask("SET", keys[2], encode(chain(1, layout=OTHER)[0], layout=OTHER).joined())
    verified = admin.verify()
    assert {bad.name: bad.kind for bad in verified.bad} == dict(
        zip(names(blocks), ("damaged", "truncated", "foreign"), strict=True)
    )
    assert verified.num_whole == 2
    assert len(caplog.records) == 3


@pytest.mark.redis
def test_a_whole_block_under_another_blocks_name_is_bad(two_models, admin):
    first, second, _ = (block_key(LAYOUT.namespace, name) for name in names(chain(3)))
    two_models.ask("SET", second, two_models.ask("GET", first))
    assert [bad.kind for bad in admin.verify(LAYOUT.fingerprint).bad] == ["other_tokens"]


@pytest.mark.redis
def test_empty_takes_one_model_or_all_and_its_pins_and_nobody_elses_keys(two_models, admin, store):
    store.pin(names(chain(3)), lease="mine")
    assert admin.empty(LAYOUT.fingerprint) == 3
    assert [use.fingerprint for use in admin.show()] == [OTHER.fingerprint]
    assert admin.empty() == 2
    assert two_models.ask("KEYS", "*") == [b"pagoda:else"]


@pytest.mark.redis
def test_all_of_it_works_while_others_write(admin, store):
    is_over = threading.Event()

    def write():
        turn = 0
        while not is_over.is_set():
            blocks = chain(10, first_token=100 * (turn % 50))
            store.put_many(blocks)
            store.get_many(wanted(blocks))
            turn += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            time.sleep(0.1)
            admin.show()
            assert admin.verify().bad == ()
            admin.empty()
    finally:
        is_over.set()
        writer.join()
    assert store.stats().errors == {}


@pytest.mark.redis
def test_more_blocks_than_one_batch_are_all_seen(admin, store):
    store.put_many(chain(1_500))
    assert admin.show()[0].num_blocks == 1_500
    assert admin.verify().num_whole == 1_500
    assert admin.empty() == 1_500


@pytest.mark.redis
def test_a_writer_that_was_killed_leaves_whole_blocks_only(empty_valkey, admin):
    code = f"""
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_redis_block_store
from tests.kvstore.blocks import LAYOUT, chain
store = open_redis_block_store(StoreConfig(redis_url={empty_valkey.url!r}), layout=LAYOUT)
for turn in range(1_000_000):
    store.put_many(chain(16, first_token=100 * turn))
"""
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", code])
        num_before = empty_valkey.ask("DBSIZE")
        while empty_valkey.ask("DBSIZE") < num_before + 100:
            assert writer.poll() is None
            time.sleep(0.01)
        writer.kill()
        writer.wait()
    verified = admin.verify()
    assert verified.num_whole >= 300
    assert verified.bad == ()


@pytest.mark.redis
def test_the_command_shows_verifies_and_empties(two_models, capsys):
    assert run(two_models, "show") == 0
    assert "5 blocks" in capsys.readouterr().out
    assert run(two_models, "verify", "--model", OTHER.fingerprint) == 0
    assert capsys.readouterr().out.startswith("2 blocks whole")
    assert run(two_models, "empty") == 0
    assert capsys.readouterr().out == "5 blocks removed\n"


@pytest.mark.redis
def test_the_command_says_so_when_a_block_is_bad(two_models, capsys):
    two_models.ask("SET", block_key(LAYOUT.namespace, names(chain(1))[0]), "garbage")
    assert run(two_models, "verify") == 1
    assert "truncated" in capsys.readouterr().out


def test_the_command_says_what_is_wrong_in_one_line(capsys):
    assert main(["show"], {}) == 2
    assert main(["show", "--redis-url", "redis://u:secret@127.0.0.1:1"], {}) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "expected --redis-url" in first
    assert "redis://127.0.0.1:1" in second
    assert "secret" not in second
