"""Compression of stored blocks: half the bytes, and an error that stays within what it says."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block_codec import decode, encode, read_header
from kvstore.block_compression import (
    compress_half,
    compressed_bytes,
    decompress_half,
    encode_e4m3,
    from_float32,
    to_float32,
)
from kvstore.block_store import BlockLayout, WantedBlock
from kvstore.coded_block_store import CodedBlockStore
from kvstore.memory_store import Memory, MemoryShelf
from tests.kvstore.blocks import LAYOUT, ROOT, block, chain, wanted

WIDE = BlockLayout("m", "float32", num_layers=3, block_size=16, num_kv_heads=4, head_dim=64)
E4M3_POSITIVE = [
    m * 2.0**-9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    for e in range(16)
    for m in range(8)
    if (e, m) != (15, 7)
]


def random_half(layout, *, spread=1.0, seed=0):
    """K or V whose heads differ in scale by up to 10**spread."""
    source = np.random.default_rng(seed)
    scales = 10.0 ** source.uniform(-spread, spread, (layout.num_layers, 1, layout.num_kv_heads, 1))
    numbers = (source.standard_normal(layout.shape) * scales).astype(np.float32)
    return from_float32(numbers, dtype=layout.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("compression", ["int8", "fp8"])
@pytest.mark.parametrize("seed", range(5))
def test_no_number_moves_further_than_the_bound(dtype, compression, seed):
    layout = dataclasses.replace(WIDE, dtype=dtype)
    half = random_half(layout, seed=seed)
    small = compress_half(half, layout=layout, compression=compression)
    restored = decompress_half(small.data, layout=layout, compression=compression)
    before, after = to_float32(half, dtype=dtype), to_float32(restored, dtype=dtype)
    error = np.abs(before - after).max()
    assert 0.1 * small.error_bound < error <= small.error_bound
    assert len(small.data) == compressed_bytes(layout) < len(half) * 0.52


@pytest.mark.parametrize(("compression", "share"), [("int8", 0.5 / 127), ("fp8", 2.0**-4)])
def test_a_loud_head_does_not_cost_a_quiet_one_its_precision(compression, share):
    numbers = np.random.default_rng(3).standard_normal(WIDE.shape).astype(np.float32)
    numbers[:, :, 0] *= 1e4
    half = from_float32(numbers, dtype="float32")
    small = compress_half(half, layout=WIDE, compression=compression)
    restored = decompress_half(small.data, layout=WIDE, compression=compression)
    error = np.abs(to_float32(restored, dtype="float32").reshape(WIDE.shape) - numbers)
    quiet, largest = error[:, :, 1:].max(), np.abs(numbers[:, :, 1:]).max()
    assert quiet <= 1.001 * share * largest


def test_e4m3_takes_the_nearest_code_and_the_even_one_at_a_draw():
    for code, (low, high) in enumerate(zip(E4M3_POSITIVE, E4M3_POSITIVE[1:], strict=False)):
        middle = (low + high) / 2
        points = np.array([low, np.nextafter(middle, 0), middle, np.nextafter(middle, 1e9), high])
        even = code if code % 2 == 0 else code + 1
        assert encode_e4m3(points.astype(np.float64).astype(np.float32))[[0, 2, 4]].tolist() == [
            code,
            even,
            code + 1,
        ]
        inner = np.array([middle * (1 - 1e-6), middle * (1 + 1e-6)], dtype=np.float32)
        assert encode_e4m3(inner).tolist() == [code, code + 1]


def test_e4m3_keeps_signs_and_stays_at_its_largest():
    numbers = np.array([-448.0, 448.0, 1e9, -1e9, 0.0, -0.0], dtype=np.float32)
    assert encode_e4m3(numbers).tolist() == [0xFE, 0x7E, 0x7E, 0xFE, 0x00, 0x80]


@settings(max_examples=300, deadline=None)
@given(
    st.floats(
        width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**120), max_value=2.0**120
    )
)
def test_bfloat16_rounds_to_nearest(number):
    rounded = to_float32(
        from_float32(np.array([number], np.float32), dtype="bfloat16"), dtype="bfloat16"
    )
    assert abs(float(rounded[0]) - number) <= max(abs(number) * 2.0**-8, 2.0**-133)


@pytest.mark.parametrize("compression", ["int8", "fp8"])
def test_zeros_stay_zeros(compression):
    half = bytes(WIDE.half_bytes)
    small = compress_half(half, layout=WIDE, compression=compression)
    assert decompress_half(small.data, layout=WIDE, compression=compression) == half


def test_numbers_that_are_not_finite_are_stored_as_they_are():
    layout = dataclasses.replace(LAYOUT, dtype="float32")
    half = np.full(layout.half_bytes // 4, np.nan, np.float32).tobytes()
    original = dataclasses.replace(
        block(ROOT, range(4), layout=layout), keys=half, values=bytes(layout.half_bytes)
    )
    value = encode(original, layout=layout, compression="int8").joined()
    assert read_header(value).compression == "none"
    found = decode(value, layout=layout, wanted=WantedBlock(original.name, original.token_ids))
    assert bytes(found.keys) == half


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_cache_of_bytes_is_not_compressed_again(dtype):
    layout = dataclasses.replace(LAYOUT, dtype=dtype)
    value = encode(block(ROOT, range(4), layout=layout), layout=layout, compression="fp8").joined()
    assert read_header(value).compression == "none"


@pytest.mark.parametrize("compression", ["int8", "fp8"])
def test_a_store_shows_what_compression_saved_and_what_it_may_cost(compression):
    memory = Memory(max_bytes=1 << 20, clock=lambda: 0.0)
    layout = dataclasses.replace(LAYOUT, block_size=16, head_dim=32)

    def store(how):
        shelf = MemoryShelf(memory, namespace=layout.namespace)
        return CodedBlockStore(shelf, layout=layout, clock=lambda: 0.0, compression=how)

    writer, blocks = store(compression), chain(4, layout=layout)
    writer.put_many(blocks)
    stats = writer.stats()
    assert stats.put_bytes < 0.65 * stats.raw_put_bytes
    assert stats.raw_put_bytes == 4 * layout.payload_bytes
    # Replicas with another setting can read it.
    found = store("none").get_many(wanted(blocks)).blocks
    before = to_float32(blocks[2].keys, dtype="bfloat16")
    error = np.abs(to_float32(found[2].keys, dtype="bfloat16") - before).max()
    assert 0.0 < error <= stats.compression_error < 0.3
