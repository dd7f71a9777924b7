"""Names of blocks: equal exactly for equal prefixes of the same model, adapter, tenant and size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.block_hash import HASH_BYTES, block_hashes, child_hash, root_hash

ROOT = root_hash(fingerprint="model", block_size=4)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def names(tokens, root=ROOT, block_size=4):
    return list(block_hashes(tokens, block_size=block_size, root=root))


def test_equal_prefixes_share_names_until_they_differ():
    shared = list(range(8))
    a = names([*shared, 1, 2, 3, 4])
    b = names([*shared, 9, 9, 9, 9])
    assert a[:2] == b[:2]
    assert a[2] != b[2]


def test_a_part_filled_tail_has_no_name():
    assert len(names(range(11))) == 2
    assert names(range(3)) == []


def test_the_same_tokens_after_another_prefix_have_another_name():
    assert names([1, 1, 1, 1, 5, 5, 5, 5])[1] != names([2, 2, 2, 2, 5, 5, 5, 5])[1]


def test_a_chain_can_be_continued_from_any_of_its_names():
    whole = names(range(12))
    assert child_hash(whole[1], range(8, 12)) == whole[2]
    assert names(range(4, 12), root=whole[0]) == whole[1:]


def test_lists_and_arrays_of_tokens_are_named_alike():
    assert names(np.arange(8)) == names(list(range(8)))


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "other", "block_size": 4},
        {"fingerprint": "model", "block_size": 8},
        {"fingerprint": "model", "block_size": 4, "adapter": "a"},
        {"fingerprint": "model", "block_size": 4, "salt": b"tenant"},
    ],
)
def test_whatever_changes_the_values_or_the_sharing_changes_the_root(other):
    assert root_hash(**other) != ROOT


def test_parts_of_a_root_cannot_be_shifted_into_each_other():
    a = root_hash(fingerprint="ab", adapter="c", block_size=4)
    b = root_hash(fingerprint="a", adapter="bc", block_size=4)
    assert a != b


@given(TOKENS, TOKENS)
def test_names_are_equal_exactly_where_the_tokens_so_far_are(left, right):
    for index, (a, b) in enumerate(zip(names(left), names(right), strict=False)):
        stop = (index + 1) * 4
        assert (a == b) == (left[:stop] == right[:stop])
        assert len(a) == HASH_BYTES
