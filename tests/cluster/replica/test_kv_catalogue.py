"""A replica's copy of what its prefix cache can find, and what it tells whoever asks."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.replica.kv_catalogue import KvCatalogue
from replicas.request import KvEvent
from router.prefixes.prefix_index import PrefixIndex

NAMES = tuple(bytes([number]) * 32 for number in range(8))


def stored(*numbers: int) -> KvEvent:
    return KvEvent("stored", tuple(NAMES[number] for number in numbers))


def removed(*numbers: int) -> KvEvent:
    return KvEvent("removed", tuple(NAMES[number] for number in numbers))


def a_catalogue(*events: KvEvent) -> KvCatalogue:
    catalogue = KvCatalogue()
    catalogue.begin(1)
    catalogue.add(events)
    return catalogue


def test_changes_are_numbered_one_after_another():
    catalogue = a_catalogue(stored(0), removed(1))
    batch = catalogue.add((removed(0),))
    assert batch is not None
    assert (batch.epoch, batch.first_number) == (1, 2)
    assert catalogue.add(()) is None


def test_neighbours_of_one_kind_are_told_as_one_without_their_tokens():
    catalogue = a_catalogue()
    batch = catalogue.add(
        (
            KvEvent("stored", NAMES[:1], parent=b"p" * 32, token_ids=(1, 2)),
            KvEvent("stored", NAMES[1:2], parent=NAMES[0], token_ids=(3, 4)),
            removed(0),
            stored(3),
        )
    )
    assert batch is not None
    assert batch.events == (stored(0, 1), removed(0), stored(3))


def test_a_snapshot_holds_what_is_left_parents_first():
    (part,) = a_catalogue(stored(0, 1), stored(2), removed(1)).snapshot()
    assert part.block_hashes == (NAMES[0], NAMES[2])
    assert (part.epoch, part.next_number) == (1, 2)
    assert part.is_first
    assert part.is_last


def test_an_empty_cache_has_a_snapshot_too():
    (part,) = a_catalogue(stored(0), KvEvent("cleared")).snapshot()
    assert part.block_hashes == ()


def test_a_new_core_begins_with_nothing():
    catalogue = a_catalogue(stored(0, 1))
    catalogue.begin(2)
    (part,) = catalogue.snapshot()
    assert (part.epoch, part.next_number, part.block_hashes) == (2, 0, ())


def test_a_large_snapshot_comes_in_parts_that_make_the_whole():
    parts = a_catalogue(stored(*range(7))).snapshot(max_blocks=3)
    assert [len(part.block_hashes) for part in parts] == [3, 3, 1]
    assert [(part.is_first, part.is_last) for part in parts] == [
        (True, False),
        (False, False),
        (False, True),
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stored", "removed", "cleared"]),
            st.lists(st.integers(0, 7), max_size=4),
        ),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_a_snapshot_makes_an_index_that_heard_nothing_exact(
    told: list[tuple[str, list[int]]], max_blocks: int
):
    catalogue, heard, late = a_catalogue(), PrefixIndex(max_blocks=99), PrefixIndex(max_blocks=99)
    for kind, numbers in told:
        names = () if kind == "cleared" else tuple(NAMES[number] for number in numbers)
        batch = catalogue.add((KvEvent(kind, names),))
        assert batch is not None
        heard.apply("a", batch)
    for part in catalogue.snapshot(max_blocks=max_blocks):
        late.load("a", part)
    assert late.is_exact("a")
    assert late.hits(NAMES) == heard.hits(NAMES)
