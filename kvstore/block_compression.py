"""Halves the bytes of a stored block, at a known error: int8 or fp8 with one scale per head.

A head's values of one layer and one block share a scale, so that a head with large values does not
cost the others their precision. Pure numpy on bytes; what an engine computes with is its own
affair. The e4m3 format is that of Micikevicius et al., "FP8 Formats for Deep Learning" (2022),
the variant without infinities.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvstore.block_store import BlockLayout, Buffer, KvDtype

Compression = Literal["none", "int8", "fp8"]
FloatArray = npt.NDArray[np.float32]

_INT8_MAX = 127.0
_E4M3_MAX = 448.0
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class CompressedHalf:
    """K or V of one block, smaller. data: the scales [layers, kv_heads] as float32, then one byte
    per number. error_bound: no number comes back further from itself than this.
    """

    data: bytes
    error_bound: float


def compressed_bytes(layout: BlockLayout) -> int:
    """Length of CompressedHalf.data for this layout."""
    layers, block_size, heads, head_dim = layout.shape
    return layers * heads * (_SCALE_BYTES + block_size * head_dim)


def can_compress(layout: BlockLayout) -> bool:
    """Whether there is anything to gain: a cache of bytes is small already."""
    return layout.dtype in ("bfloat16", "float16", "float32") and layout.scale_bytes == 0


def compress_half(
    half: Buffer, *, layout: BlockLayout, compression: Compression
) -> CompressedHalf | None:
    """Compress K or V [layers, block_size, kv_heads, head_dim] to one byte a number.

    None if a number is not finite: no scale would fit it.
    """
    numbers = to_float32(half, dtype=layout.dtype).reshape(layout.shape)
    largest = np.abs(numbers).max(axis=(1, 3))
    if not np.isfinite(largest).all():
        return None
    top = _INT8_MAX if compression == "int8" else _E4M3_MAX
    # Dividing by the smallest normal number at least keeps the quotient finite.
    scales = np.maximum(largest / top, np.finfo(np.float32).tiny).astype("<f4")
    scaled = numbers / scales[:, None, :, None]
    codes: npt.NDArray[np.uint8]
    if compression == "int8":
        codes = np.rint(scaled).clip(-_INT8_MAX, _INT8_MAX).astype(np.int8).view(np.uint8)
    else:
        codes = encode_e4m3(scaled)
    return CompressedHalf(
        scales.tobytes() + codes.tobytes(),
        error_bound(float(largest.max()), dtype=layout.dtype, compression=compression),
    )


def decompress_half(data: Buffer, *, layout: BlockLayout, compression: Compression) -> bytes:
    """The bytes of K or V in the layout's dtype again, each number within its error bound."""
    layers, block_size, heads, head_dim = layout.shape
    if len(data) != compressed_bytes(layout):
        raise ValueError(f"{len(data)} bytes: expected {compressed_bytes(layout)}")
    view = memoryview(data)
    split = layers * heads * _SCALE_BYTES
    scales = np.frombuffer(view[:split], dtype="<f4").reshape(layers, 1, heads, 1)
    codes = np.frombuffer(view[split:], dtype=np.uint8).reshape(layers, block_size, heads, head_dim)
    numbers = codes.view(np.int8).astype(np.float32) if compression == "int8" else _E4M3[codes]
    return from_float32(numbers * scales, dtype=layout.dtype)


def error_bound(largest: float, *, dtype: KvDtype, compression: Compression) -> float:
    """Furthest that a number of a head whose largest magnitude is `largest` can move.

    int8 rounds to 1/127 of the largest, so half of that. e4m3 keeps 3 bits after the point, so half
    of 2**-3 of the number itself, at most; on top comes rounding to the cache's own dtype.
    """
    own = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-23}.get(dtype, 0.0)
    step = 0.5 / _INT8_MAX if compression == "int8" else 2.0**-4
    return largest * (step + own * (1.0 + step) + 2.0**-22)


def to_float32(half: Buffer, *, dtype: KvDtype) -> FloatArray:
    """The numbers behind the bytes, flat, as float32 (exact for every dtype here)."""
    if dtype == "bfloat16":
        bits = np.frombuffer(half, dtype="<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    kind = {"float16": "<f2", "float32": "<f4"}[dtype]
    return np.frombuffer(half, dtype=kind).astype(np.float32)


def from_float32(numbers: FloatArray, *, dtype: KvDtype) -> bytes:
    """Finite numbers as bytes of `dtype`, rounded to nearest, ties to even."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        return rounded.astype("<u2").tobytes()
    kind = {"float16": "<f2", "float32": "<f4"}[dtype]
    return numbers.astype(kind).tobytes()


def encode_e4m3(numbers: FloatArray) -> npt.NDArray[np.uint8]:
    """Nearest e4m3 code of each finite number, ties to even; beyond 448 it stays at 448."""
    magnitude = np.minimum(np.abs(numbers), np.float32(_E4M3_MAX)).astype(np.float32)
    bits = magnitude.view(np.uint32)
    # float32 has 23 bits after the point and e4m3 has 3; the exponents' biases are 127 and 7.
    odd = (bits >> np.uint32(20)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFFF) + odd) >> np.uint32(20)
    normal = rounded.astype(np.int32) - ((127 - 7) << 3)
    # Below 2**-6 the steps are all of 2**-9.
    tiny = np.rint(magnitude * np.float32(2.0**9)).astype(np.int32)
    codes = np.where(magnitude < np.float32(2.0**-6), tiny, normal).astype(np.uint8)
    return codes | (np.signbit(numbers).astype(np.uint8) << np.uint8(7))


def _e4m3_table() -> FloatArray:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(
        exponent == 0, mantissa * 2.0**-9, (1.0 + mantissa / 8.0) * 2.0 ** (exponent - 7.0)
    )
    table = np.where(codes & 128, -magnitude, magnitude).astype(np.float32)
    # The two codes with every bit set are "not a number"; encode_e4m3 makes neither.
    table[[0x7F, 0xFF]] = np.nan
    return table


_E4M3 = _e4m3_table()
