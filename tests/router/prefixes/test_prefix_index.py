"""The prefix index: numbered changes, gaps, snapshots, losses, and its bound."""

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prefixes.kv_events import AskSnapshot, KvBatch, KvBlocks, KvSnapshot
from router.prefixes.prefix_index import PrefixIndex

NAMES = tuple(hashlib.sha256(bytes([number])).digest() for number in range(10))


def stored(*numbers: int) -> KvBlocks:
    return KvBlocks("stored", tuple(NAMES[number] for number in numbers))


def removed(*numbers: int) -> KvBlocks:
    return KvBlocks("removed", tuple(NAMES[number] for number in numbers))


def a_batch(first_number: int, *events: KvBlocks, epoch: int = 1) -> KvBatch:
    return KvBatch(epoch, first_number, events)


def an_index(*batches: KvBatch, max_blocks: int = 1000) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks, snapshot_timeout_s=5.0)
    for batch in batches:
        index.apply("a", batch)
    return index


def reasons(index: PrefixIndex, now: float = 0.0) -> list[str]:
    return [command.reason for command in index.due(now)]


def test_changes_told_from_the_start_are_exact_and_need_no_snapshot():
    index = an_index(a_batch(0, stored(0, 1)), a_batch(1, stored(2), removed(1)))
    assert index.hits(NAMES) == {"a": 1}
    assert index.is_exact("a")
    assert index.due(0.0) == ()


def test_a_gap_asks_for_a_snapshot_once_and_goes_on_meanwhile():
    index = an_index(a_batch(0, stored(0)), a_batch(5, stored(1)))
    assert index.due(0.0) == (AskSnapshot("a", "gap"),)
    assert index.due(1.0) == ()
    assert index.hits(NAMES) == {"a": 2}
    assert not index.is_exact("a")


def test_a_snapshot_replaces_what_was_known_and_the_next_change_follows_it():
    index = an_index(a_batch(0, stored(0)), a_batch(5, stored(1)))
    index.load("a", KvSnapshot(1, 8, (NAMES[0], NAMES[1], NAMES[2])))
    assert index.is_exact("a")
    index.apply("a", a_batch(8, removed(2)))
    assert index.is_exact("a")
    assert index.hits(NAMES) == {"a": 2}
    assert index.due(9.0) == ()


def test_a_snapshot_that_does_not_come_is_asked_for_again():
    index = an_index(a_batch(3, stored(0)))
    assert reasons(index, 0.0) == ["backwards"]
    assert reasons(index, 4.9) == []
    assert reasons(index, 5.0) == ["unanswered"]


def test_a_backwards_number_empties_what_was_known():
    index = an_index(a_batch(0, stored(0)), a_batch(1, stored(1)), a_batch(1, stored(2)))
    assert index.hits(NAMES) == {}
    assert reasons(index) == ["backwards"]
    assert index.figures.resets_total == 1


def test_a_new_epoch_empties_what_was_known_and_is_exact_from_its_first_change():
    index = an_index(a_batch(0, stored(0, 1)), a_batch(0, stored(0), epoch=2))
    assert index.hits(NAMES) == {"a": 1}
    assert index.is_exact("a")


def test_a_new_epoch_heard_late_asks_for_a_snapshot():
    index = an_index(a_batch(0, stored(0, 1)), a_batch(4, stored(2), epoch=2))
    assert index.hits(NAMES) == {}
    assert reasons(index) == ["backwards"]


def test_a_cleared_cache_has_no_hits_and_stays_exact():
    index = an_index(a_batch(0, stored(0, 1)), a_batch(1, KvBlocks("cleared")))
    assert index.hits(NAMES) == {}
    assert index.is_exact("a")


def test_a_lost_replica_is_forgotten():
    index = an_index(a_batch(0, stored(0)))
    index.apply("b", a_batch(0, stored(0, 1)))
    index.forget("a")
    assert index.hits(NAMES) == {"b": 2}
    index.check()


def test_a_stream_that_begins_anew_asks_what_is_there():
    index = an_index(a_batch(0, stored(0)))
    index.attach("a")
    assert index.hits(NAMES) == {}
    assert reasons(index) == ["attached"]


def test_a_replica_attached_before_its_first_change_needs_no_snapshot():
    index = PrefixIndex(max_blocks=10)
    index.attach("a")
    index.apply("a", a_batch(0, stored(0)))
    assert index.due(0.0) == ()
    assert index.is_exact("a")


def test_a_change_of_an_unknown_kind_ends_exactness():
    index = an_index(a_batch(0, stored(0), KvBlocks("moved", (NAMES[0],))))
    assert reasons(index) == ["unknown_change"]


def test_a_large_snapshot_comes_in_parts():
    index = an_index(a_batch(2, stored(9)))
    index.load("a", KvSnapshot(1, 7, NAMES[:2], is_last=False))
    assert not index.is_exact("a")
    index.load("a", KvSnapshot(1, 7, NAMES[2:4], is_first=False))
    assert index.is_exact("a")
    assert index.hits(NAMES) == {"a": 4}


def test_a_change_between_two_parts_of_a_snapshot_asks_for_another_one():
    index = an_index(a_batch(2, stored(9)))
    index.load("a", KvSnapshot(1, 7, NAMES[:2], is_last=False))
    index.apply("a", a_batch(7, removed(1)))
    index.load("a", KvSnapshot(1, 7, NAMES[2:4], is_first=False))
    assert not index.is_exact("a")
    assert index.hits(NAMES) == {"a": 1}
    assert reasons(index) == ["interrupted"]


def test_what_had_no_room_is_asked_for_when_there_is_room_again():
    index = an_index(a_batch(0, stored(*range(6))), max_blocks=4)
    assert index.hits(NAMES) == {"a": 4}
    assert index.figures.dropped_blocks_total == 2
    assert not index.is_exact("a")
    assert index.due(0.0) == ()
    index.apply("a", a_batch(1, removed(2, 3)))
    assert reasons(index) == ["room_again"]
    index.load("a", KvSnapshot(1, 2, (NAMES[0], NAMES[1])))
    assert index.is_exact("a")


def test_a_forgotten_replica_makes_room_as_time_goes_by():
    index = an_index(a_batch(0, stored(*range(6))))
    index.forget("a")
    for tick in range(300):
        index.due(float(tick))
    assert index.figures.num_blocks == 0


changes = st.tuples(
    st.sampled_from(["stored", "removed", "cleared"]), st.lists(st.integers(0, 9), max_size=4)
)


@given(
    st.lists(st.lists(changes, min_size=1, max_size=3), max_size=25),
    st.data(),
)
def test_whatever_is_lost_on_the_way_one_snapshot_makes_the_index_exact(
    told: list[list[tuple[str, list[int]]]], data: st.DataObject
):
    index = PrefixIndex(max_blocks=1000)
    cache: dict[bytes, None] = {}
    number = 0
    for group in told:
        events = []
        for kind, numbers in group:
            names = tuple(NAMES[n] for n in numbers)
            events.append(KvBlocks(kind, () if kind == "cleared" else names))
            if kind == "stored":
                cache |= dict.fromkeys(names)
            for name in list(cache) if kind == "cleared" else names:
                if kind != "stored":
                    cache.pop(name, None)
        if data.draw(st.booleans(), label="arrives"):
            index.apply("a", a_batch(number, *events))
        number += len(events)
        for _ in index.due(0.0):
            if data.draw(st.booleans(), label="answered"):
                index.load("a", KvSnapshot(1, number, tuple(cache)))
        index.check()
    index.load("a", KvSnapshot(1, number, tuple(cache)))
    expected = next((n for n, name in enumerate(NAMES) if name not in cache), len(NAMES))
    assert index.hits(NAMES).get("a", 0) == expected
    assert index.is_exact("a")


@pytest.mark.parametrize("num_blocks", [50_000])
def test_a_block_costs_at_most_200_bytes(num_blocks: int):
    batches = []
    tracemalloc.start()
    try:
        index = PrefixIndex(max_blocks=num_blocks)
        for first in range(0, num_blocks, 100):
            names = tuple(hashlib.sha256(b"%d" % n).digest() for n in range(first, first + 100))
            batches.append(KvBatch(1, first // 100, (KvBlocks("stored", names),)))
            index.apply("a", batches.pop())
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.figures.num_blocks == num_blocks
    assert used_bytes / num_blocks < 200
