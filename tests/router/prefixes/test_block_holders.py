"""Who holds which block: against a plain model, under its bound, and swept piece by piece."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from router.prefixes.block_holders import NUM_SHARDS, BlockHolders

NAMES = tuple(hashlib.sha256(bytes([number])).digest() for number in range(12))


def holders_of(**held: range) -> BlockHolders:
    holders = BlockHolders(max_blocks=100)
    for holder, numbers in held.items():
        holders.reset(holder)
        assert holders.add(holder, (NAMES[number] for number in numbers)) == 0
    return holders


def model_prefixes(model: dict[str, set[bytes]], names: tuple[bytes, ...]) -> dict[str, int]:
    lengths = {}
    for holder, held in model.items():
        length = 0
        while length < len(names) and names[length] in held:
            length += 1
        if length:
            lengths[holder] = length
    return lengths


def test_every_holder_is_credited_with_its_own_share_of_a_prefix():
    holders = holders_of(a=range(4), b=range(2), c=range(1, 5))
    assert holders.prefix_blocks(NAMES[:6]) == {"a": 4, "b": 2}


def test_a_block_after_a_hole_is_no_hit():
    holders = holders_of(a=range(4))
    holders.remove("a", NAMES[1:2])
    assert holders.prefix_blocks(NAMES) == {"a": 1}


def test_a_forgotten_holder_is_found_no_more_although_its_names_are_still_kept():
    holders = holders_of(a=range(4), b=range(2))
    holders.forget("a")
    assert holders.prefix_blocks(NAMES) == {"b": 2}
    assert holders.num_blocks == 4
    holders.sweep(NUM_SHARDS)
    assert holders.num_blocks == 2
    assert not holders.is_sweeping


def test_a_new_holder_inherits_nothing_from_one_that_is_being_swept():
    holders = holders_of(a=range(4))
    holders.sweep(NUM_SHARDS // 2)
    holders.forget("a")
    holders.sweep(NUM_SHARDS // 2)
    holders.reset("b")
    assert holders.prefix_blocks(NAMES) == {}
    holders.sweep(2 * NUM_SHARDS)
    holders.check()
    assert holders.num_blocks == 0


def test_over_the_bound_new_names_are_left_out_and_known_ones_still_shared():
    holders = BlockHolders(max_blocks=3)
    holders.reset("a")
    holders.reset("b")
    assert holders.add("a", NAMES[:5]) == 2
    assert holders.add("b", NAMES[:3]) == 0
    assert holders.prefix_blocks(NAMES) == {"a": 3, "b": 3}
    holders.check()


def test_many_lives_of_one_holder_do_not_use_up_bits():
    holders = BlockHolders(max_blocks=10)
    for _ in range(1000):
        holders.reset("a")
        holders.add("a", NAMES[:2])
        holders.sweep(NUM_SHARDS)
    assert holders._live.bit_length() <= 4


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "reset", "forget", "sweep"]),
        st.sampled_from("abc"),
        st.lists(st.integers(0, 11), max_size=6),
    ),
    max_size=60,
)


@given(operations)
def test_prefixes_are_those_of_a_plain_model_after_any_operations(
    steps: list[tuple[str, str, list[int]]],
):
    holders = BlockHolders(max_blocks=100)
    model: dict[str, set[bytes]] = {}
    for step, holder, numbers in steps:
        names = [NAMES[number] for number in numbers]
        if step == "sweep":
            holders.sweep(len(names) * 50)
        elif step == "forget":
            holders.forget(holder)
            model.pop(holder, None)
        elif step == "reset" or holder not in model:
            holders.reset(holder)
            model[holder] = set()
        elif step == "add":
            holders.add(holder, names)
            model[holder] |= set(names)
        else:
            holders.remove(holder, names)
            model[holder] -= set(names)
        holders.check()
        assert holders.prefix_blocks(NAMES) == model_prefixes(model, NAMES)
