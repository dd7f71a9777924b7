"""A block table comes back as it was written, and nothing else is taken for one."""

import random
from dataclasses import replace

import pytest

from kvstore.errors import CorruptTable
from kvstore.handoff_table import (
    MAX_TABLE_BYTES,
    HandoffTable,
    Offer,
    decode_table,
    encode_table,
    hash_of_tokens,
    table_key,
    tail_name,
)

TABLE = HandoffTable(
    request_id="cmpl-é1",
    generation=4_000_000_000,
    names=(bytes(range(32)), bytes(32)),
    num_tokens=37,
    num_tail_tokens=5,
    token_hash=hash_of_tokens(range(37)),
    token_ids=(17,),
    seed=-(1 << 63),
    position=38,
    deadline_s=12.5,
    namespace="00.bfloat16.l2b16h2d8.v1.tp0of1",
    offers=(Offer("shm", "machine/socket"), Offer("store", "")),
)


def test_a_table_comes_back_as_it_was_written():
    assert decode_table(encode_table(TABLE)) == TABLE


def test_an_empty_table_comes_back_as_it_was_written():
    empty = replace(TABLE, names=(), token_ids=(), offers=(), request_id="", namespace="")
    assert decode_table(encode_table(empty)) == empty


def test_every_flipped_bit_is_found():
    value = encode_table(TABLE)
    for index in range(len(value)):
        damaged = bytearray(value)
        damaged[index] ^= 1 << index % 8
        with pytest.raises(CorruptTable):
            decode_table(bytes(damaged))


def test_a_table_cut_anywhere_is_refused():
    value = encode_table(TABLE)
    for length in range(len(value)):
        with pytest.raises(CorruptTable):
            decode_table(value[:length])


def test_noise_is_refused_whatever_its_length():
    noise = random.Random(1)
    for length in (0, 3, 60, 92, 1000):
        with pytest.raises(CorruptTable):
            decode_table(noise.randbytes(length))


def test_a_table_larger_than_any_is_not_looked_at():
    with pytest.raises(CorruptTable, match="no table has that many"):
        decode_table(bytes(MAX_TABLE_BYTES + 1))


def test_a_text_without_end_is_not_written():
    with pytest.raises(ValueError, match="longer than"):
        encode_table(replace(TABLE, offers=(Offer("shm", "x" * 2000),)))


def test_every_try_has_names_of_its_own():
    names = {
        name(request_id, generation)
        for name in (table_key, tail_name)
        for request_id in ("a", "b", "a1")
        for generation in (1, 2, 11)
    }
    assert len(names) == 18
