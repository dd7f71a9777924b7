"""Slots: every token of every request in a slot of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.block_table import BlockTables, num_blocks_for, slots_of


@given(st.integers(0, 1000), st.integers(1, 64))
def test_blocks_hold_their_tokens_with_less_than_a_block_to_spare(num_tokens, block_size):
    blocks = num_blocks_for(num_tokens, block_size)
    assert 0 <= blocks * block_size - num_tokens < block_size


def test_a_slot_is_the_block_id_times_the_block_size_plus_the_offset():
    tables = np.array([[7, 2, 9], [4, 5, 6]], dtype=np.int32)
    rows = np.array([0, 0, 1])
    positions = np.array([15, 16, 47])
    assert slots_of(tables, rows, positions, 16).tolist() == [7 * 16 + 15, 2 * 16, 6 * 16 + 15]


def test_a_batch_keeps_its_rows_when_a_slot_changes_hands():
    tables = BlockTables(max_num_seqs=2, max_blocks=4)
    slot = tables.take_slot()
    tables.append(slot, [3, 1], at=0)
    copy = tables.rows(np.array([slot], dtype=np.int32), 2)
    tables.append(slot, [8, 8], at=0)
    assert copy.tolist() == [[3, 1]]


def test_slots_are_given_out_once():
    tables = BlockTables(max_num_seqs=2, max_blocks=1)
    first, second = tables.take_slot(), tables.take_slot()
    assert {first, second} == {0, 1}
    assert tables.num_free_slots == 0
    tables.give_back(first)
    with pytest.raises(AssertionError, match="free already"):
        tables.give_back(first)
