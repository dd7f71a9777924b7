"""What every block store promises, held against each of them."""

import dataclasses
import threading

import pytest

from kvstore.block_codec import encode
from kvstore.block_store import StoredBlock, WantedBlock
from tests.kvstore.blocks import LAYOUT, ROOT, all_same, block, chain, names, same, wanted

OTHER_MODEL = dataclasses.replace(LAYOUT, fingerprint="beef" * 16)
OTHER_BLOCK_SIZE = dataclasses.replace(LAYOUT, block_size=8)


def test_what_was_put_comes_back(bench):
    store, blocks = bench.open(), chain(10)
    assert store.put_many(blocks).outcomes == ("stored",) * 10
    fetched = store.get_many(wanted(blocks))
    assert fetched.ended_by == "complete"
    assert all_same(fetched.blocks, blocks)


def test_another_replica_finds_what_this_one_put(bench):
    blocks = chain(3)
    bench.open().put_many(blocks)
    other = bench.open()
    assert other.contains_prefix(names(blocks)) == 3
    assert all_same(other.get_many(wanted(blocks)).blocks, blocks)


def test_a_fetch_ends_at_the_first_block_that_is_missing(bench):
    store, blocks = bench.open(), chain(5)
    store.put_many([*blocks[:2], *blocks[3:]])
    assert store.contains_prefix(names(blocks)) == 2
    fetched = store.get_many(wanted(blocks))
    assert fetched.ended_by == "absent"
    assert all_same(fetched.blocks, blocks[:2])
    assert (store.stats().hit_blocks, store.stats().missed_blocks) == (2, 3)


def test_nothing_asked_is_nothing_missing(bench):
    store = bench.open()
    assert store.get_many([]).ended_by == "complete"
    assert store.contains_prefix([], lease="a") == 0
    assert store.put_many([]).is_complete


def test_a_block_that_is_here_is_not_written_again(bench):
    store, blocks = bench.open(), chain(3)
    store.put_many(blocks[:2])
    report = store.put_many(blocks)
    assert report.outcomes == ("present", "present", "stored")
    assert report.is_complete


def test_buffers_may_be_used_again_after_a_put(bench):
    store, original = bench.open(), chain(1)[0]
    keys = bytearray(original.keys)
    store.put_many([dataclasses.replace(original, keys=keys)])
    keys[:] = bytes(len(keys))
    assert same(store.get_many(wanted([original])).blocks[0], original)


def test_a_private_tail_may_be_part_filled(bench):
    store = bench.open()
    full = block(ROOT, range(4))
    tail = dataclasses.replace(full, name=b"t" * 32, token_ids=(7, 8), is_private=True)
    store.put_many([tail])
    assert same(store.get_many(wanted([tail])).blocks[0], tail)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": b"short"},
        {"values": b""},
        {"token_ids": (1, 2, 3)},
        {"token_ids": (1, 2, 3, 4, 5), "is_private": True},
        {"name": b"short"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_block_of_the_wrong_shape_is_the_callers_error(bench, change):
    store = bench.open()
    with pytest.raises(ValueError, match="expected"):
        store.put_many([dataclasses.replace(block(ROOT, range(4)), **change)])


def test_other_models_and_block_sizes_share_nothing(bench):
    blocks = chain(2)
    bench.open().put_many(blocks)
    for layout in (OTHER_MODEL, OTHER_BLOCK_SIZE):
        other = bench.open(layout)
        assert other.contains_prefix(names(blocks)) == 0
        assert other.get_many(wanted(blocks)).ended_by == "absent"


@pytest.mark.parametrize("layout", [OTHER_MODEL, OTHER_BLOCK_SIZE], ids=["model", "block_size"])
def test_a_value_of_another_layout_under_our_name_is_a_miss(bench, layout, caplog):
    store, ours = bench.open(), chain(1)[0]
    theirs = chain(1, layout=layout)[0]
    bench.replace(ours.name, encode(theirs, layout=layout).joined())
    assert store.get_many(wanted([ours])).ended_by == "corrupt"
    assert store.stats().errors == {"foreign": 1}
    assert "kind=foreign" in caplog.text
    assert len(caplog.records) == 1


def test_a_crafted_collision_does_not_serve_other_tokens(bench, caplog):
    store, ours = bench.open(), chain(1)[0]
    stranger = WantedBlock(ours.name, (9, 9, 9, 9))
    store.put_many([ours])
    assert store.get_many([stranger]).ended_by == "corrupt"
    assert store.stats().errors == {"other_tokens": 1}
    # It still serves those to whom it belongs.
    assert same(store.get_many(wanted([ours])).blocks[0], ours)
    assert len(caplog.records) == 1


def test_a_value_that_claims_a_name_that_is_not_its_hash_is_a_miss(bench):
    store, ours = bench.open(), chain(1)[0]
    forged = dataclasses.replace(ours, parent=b"p" * 32)
    bench.replace(ours.name, encode(forged, layout=LAYOUT).joined())
    assert store.get_many(wanted([ours])).ended_by == "corrupt"
    assert store.stats().errors == {"damaged": 1}


@pytest.mark.parametrize("position", [0, 5, 60, 140, 200, -1])
def test_a_flipped_byte_is_a_miss_and_is_removed(bench, position, caplog):
    store, blocks = bench.open(), chain(3)
    store.put_many(blocks)
    value = bytearray(bench.value(blocks[1].name))
    value[position] ^= 0x10
    bench.replace(blocks[1].name, bytes(value))
    fetched = store.get_many(wanted(blocks))
    assert fetched.ended_by == "corrupt"
    assert all_same(fetched.blocks, blocks[:1])
    assert sum(store.stats().errors.values()) == 1
    assert len(caplog.records) == 1
    assert bench.value(blocks[1].name) is None


@pytest.mark.parametrize("length", [0, 1, 50, 200, -1])
def test_a_truncated_value_is_a_miss_and_can_be_written_again(bench, length, caplog):
    store, blocks = bench.open(), chain(1)
    store.put_many(blocks)
    bench.replace(blocks[0].name, bench.value(blocks[0].name)[:length])
    assert store.get_many(wanted(blocks)).blocks == ()
    assert store.stats().errors == {"truncated": 1}
    assert "kind=truncated" in caplog.text
    assert store.put_many(blocks).outcomes == ("stored",)
    assert all_same(store.get_many(wanted(blocks)).blocks, blocks)


def test_a_lookup_pins_what_it_finds_until_it_is_released(bench):
    store, blocks = bench.open(), chain(3)
    store.put_many(blocks[:2])
    assert store.contains_prefix(names(blocks), lease="mine") == 2
    assert [bench.is_pinned(name) for name in names(blocks)] == [True, True, False]
    assert store.stats().num_leases == 1
    store.release("mine")
    assert not any(bench.is_pinned(name) for name in names(blocks))
    assert store.stats().num_leases == 0


def test_a_lookup_without_a_lease_pins_nothing(bench):
    store, blocks = bench.open(), chain(1)
    store.put_many(blocks)
    store.contains_prefix(names(blocks))
    assert not bench.is_pinned(blocks[0].name)


def test_one_release_leaves_the_pins_of_others(bench):
    mine, theirs, blocks = bench.open(), bench.open(), chain(1)
    mine.put_many(blocks)
    mine.pin(names(blocks), lease="mine")
    theirs.pin(names(blocks), lease="theirs")
    mine.release("mine")
    assert bench.is_pinned(blocks[0].name)
    theirs.release("theirs")
    assert not bench.is_pinned(blocks[0].name)


def test_a_lease_ends_without_a_heartbeat_and_lasts_with_one(bench, caplog):
    store, blocks = bench.open(lease_ttl_s=0.4), chain(2)
    store.put_many(blocks)
    store.pin(names(blocks[:1]), lease="dead")
    store.pin(names(blocks[1:]), lease="alive")
    for _ in range(3):
        bench.pass_time(0.25)
        assert store.renew("alive")
    assert not bench.is_pinned(blocks[0].name)
    assert bench.is_pinned(blocks[1].name)
    assert not store.renew("dead")
    assert (store.stats().num_leases, store.stats().expired_leases) == (1, 1)
    assert len(caplog.records) == 1


def test_renewing_and_releasing_an_unknown_lease_is_a_normal_event(bench):
    store = bench.open()
    assert not store.renew("never")
    store.release("never")


def test_ten_thousand_expired_leases_leave_nothing_behind(bench):
    store, blocks = bench.open(lease_ttl_s=0.5), chain(1)
    store.put_many(blocks)
    for number in range(10_000):
        store.pin(names(blocks), lease=f"lease-{number}")
    bench.pass_time(0.7)
    assert not bench.is_pinned(blocks[0].name)
    stats = store.stats()
    assert (stats.num_leases, stats.expired_leases) == (0, 10_000)


def test_a_block_ends_with_its_ttl_unless_it_is_pinned(bench):
    store, blocks = bench.open(ttl_s=0.3, lease_ttl_s=5.0), chain(2)
    store.put_many(blocks)
    store.pin(names(blocks[:1]), lease="mine")
    bench.pass_time(0.5)
    assert store.contains_prefix(names(blocks)) == 1


def test_writing_again_lets_a_block_last_longer(bench):
    store, blocks = bench.open(ttl_s=0.4), chain(1)
    store.put_many(blocks)
    for _ in range(3):
        bench.pass_time(0.25)
        assert store.put_many(blocks).outcomes == ("present",)


def test_delete_counts_what_there_was(bench):
    store, blocks = bench.open(), chain(3)
    store.put_many(blocks[:2])
    assert store.delete(names(blocks)) == 2
    assert store.contains_prefix(names(blocks)) == 0


def test_scan_tells_every_block_of_its_own_layout_once(bench):
    store, other, blocks = bench.open(), bench.open(OTHER_MODEL), chain(30)
    store.put_many(blocks)
    other.put_many(chain(2, layout=OTHER_MODEL))
    store.pin(names(blocks), lease="mine")
    entries = list(store.scan())
    assert sorted(entry.name for entry in entries) == sorted(names(blocks))
    assert {entry.num_bytes for entry in entries} == {len(bench.value(blocks[0].name))}


def test_many_threads_may_use_one_store(bench):
    store, failures = bench.open(), []

    def work(number):
        blocks = chain(20, first_token=1000 * number)
        for _ in range(5):
            if not store.put_many(blocks).is_complete:
                failures.append(number)
            if not all_same(store.get_many(wanted(blocks)).blocks, blocks):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.stats().stored_blocks == 120


def test_closing_twice_is_fine(bench):
    store = bench.open()
    store.close()
    store.close()


def test_what_comes_back_is_a_stored_block(bench):
    store, blocks = bench.open(), chain(1)
    store.put_many(blocks)
    (found,) = store.get_many(wanted(blocks)).blocks
    assert isinstance(found, StoredBlock)
    assert len(memoryview(found.keys)) == LAYOUT.half_bytes
