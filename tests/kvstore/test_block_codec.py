"""The codec: whatever goes in comes out, and whatever was changed is noticed."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block_codec import decode, decode_unasked, encode, largest_value_bytes, read_header
from kvstore.block_hash import child_hash
from kvstore.block_store import BlockLayout, StoredBlock, WantedBlock
from kvstore.errors import CorruptBlock
from tests.kvstore.blocks import LAYOUT, ROOT, block, same

VALUE = encode(block(ROOT, (5, 6, 7, 8)), layout=LAYOUT).joined()
WANTED = WantedBlock(child_hash(ROOT, (5, 6, 7, 8)), (5, 6, 7, 8))

layouts = st.builds(
    BlockLayout,
    fingerprint=st.text("0123456789abcdef", min_size=1, max_size=64),
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "int8", "fp8_e4m3"]),
    num_layers=st.integers(1, 4),
    block_size=st.integers(1, 16),
    num_kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 16),
    tp_rank=st.integers(0, 1),
    tp_size=st.integers(2, 8),
    scale_bytes=st.integers(0, 16),
    version=st.integers(1, 9),
)


@st.composite
def layouts_and_blocks(draw):
    layout = draw(layouts)
    is_private = draw(st.booleans())
    num_tokens = draw(st.integers(0, layout.block_size)) if is_private else layout.block_size
    token = st.integers(-(2**31), 2**31 - 1)
    tokens = tuple(draw(st.lists(token, min_size=num_tokens, max_size=num_tokens)))
    parent = draw(st.binary(min_size=32, max_size=32))
    half = st.binary(min_size=layout.half_bytes, max_size=layout.half_bytes)
    name = draw(st.binary(min_size=32, max_size=32)) if is_private else child_hash(parent, tokens)
    return layout, StoredBlock(name, parent, tokens, draw(half), draw(half), is_private)


@settings(max_examples=200, deadline=None)
@given(layouts_and_blocks())
def test_every_block_of_every_layout_comes_back(drawn):
    layout, original = drawn
    encoded = encode(original, layout=layout)
    value = encoded.joined()
    assert encoded.num_bytes == len(value) <= largest_value_bytes(layout)
    wanted = WantedBlock(original.name, original.token_ids)
    assert same(decode(value, layout=layout, wanted=wanted), original)
    assert same(decode_unasked(value, read_header(value)), original)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(VALUE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(position, change):
    value = bytearray(VALUE)
    value[position] ^= change
    with pytest.raises(CorruptBlock):
        decode(value, layout=LAYOUT, wanted=WANTED)


def test_every_single_flipped_bit_is_noticed():
    for position in range(len(VALUE)):
        for bit in range(8):
            value = bytearray(VALUE)
            value[position] ^= 1 << bit
            with pytest.raises(CorruptBlock):
                decode(value, layout=LAYOUT, wanted=WANTED)


def test_every_truncation_is_noticed():
    for length in range(len(VALUE)):
        with pytest.raises(CorruptBlock) as caught:
            decode(VALUE[:length], layout=LAYOUT, wanted=WANTED)
        assert caught.value.kind == "truncated"


@given(st.binary(min_size=1, max_size=64))
def test_anything_after_the_end_is_noticed(tail):
    with pytest.raises(CorruptBlock, match=f"expected {len(VALUE)}"):
        decode(VALUE + tail, layout=LAYOUT, wanted=WANTED)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_never_a_block(garbage):
    with pytest.raises(CorruptBlock):
        decode(garbage, layout=LAYOUT, wanted=WANTED)
    with pytest.raises(CorruptBlock):
        read_header(b"PKVB" + garbage)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", "other"),
        ("dtype", "float16"),
        ("num_layers", 1),
        ("block_size", 8),
        ("num_kv_heads", 1),
        ("head_dim", 4),
        ("tp_rank", 1),
        ("tp_size", 4),
        ("version", 2),
    ],
)
def test_a_value_of_another_layout_names_what_differs(field, value):
    ours = dataclasses.replace(LAYOUT, tp_size=2)
    theirs = dataclasses.replace(ours, **{field: value})
    tokens = tuple(range(theirs.block_size))
    foreign = encode(block(ROOT, tokens, layout=theirs), layout=theirs).joined()
    with pytest.raises(CorruptBlock, match=f"{field}={value}: expected") as caught:
        decode(foreign, layout=ours, wanted=WANTED)
    assert caught.value.kind == "foreign"
    assert ours.namespace != theirs.namespace


def test_a_future_format_is_foreign_and_not_damaged(monkeypatch):
    monkeypatch.setattr("kvstore.block_codec.FORMAT_VERSION", 2)
    future = encode(block(ROOT, (5, 6, 7, 8)), layout=LAYOUT).joined()
    monkeypatch.undo()
    with pytest.raises(CorruptBlock, match="format=2: expected 1") as caught:
        decode(future, layout=LAYOUT, wanted=WANTED)
    assert caught.value.kind == "foreign"


def test_neither_way_copies_k_and_v():
    original = block(ROOT, (5, 6, 7, 8))
    parts = encode(original, layout=LAYOUT).parts
    assert [part.obj for part in parts[1:]] == [original.keys, original.values]
    found = decode(VALUE, layout=LAYOUT, wanted=WANTED)
    assert found.keys.obj is VALUE
    assert found.values.obj is VALUE


def test_k_and_v_lie_where_vector_instructions_like_them():
    assert read_header(VALUE).header_bytes % 64 == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", ""),
        ("fingerprint", "a:b"),
        ("dtype", "int3"),
        ("num_layers", 0),
        ("block_size", 1 << 16),
        ("tp_rank", 1),
        ("scale_bytes", -1),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field}="):
        dataclasses.replace(LAYOUT, **{field: value})
