"""Turns one block into one value and back, and lets nothing through that is not that very block.

    value = header | token ids (int32) | fingerprint | padding | header CRC | K | V

One value, because two keys of one block cannot be written at once, and a reader would see one
without the other (survey 4.9). The header says what the bytes are, so that an admin command can
check a value without knowing the model; the tokens are there so that a reader can compare them with
those it asked for; two CRC-32 cover every byte. K and V are never copied: encoding gives buffers to
send one after another, decoding gives views of what was received. All numbers are little-endian.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvstore.block_checksum import crc32
from kvstore.block_compression import (
    Compression,
    can_compress,
    compress_half,
    compressed_bytes,
    decompress_half,
)
from kvstore.block_hash import HASH_BYTES, child_hash
from kvstore.block_store import BlockLayout, Buffer, KvDtype, StoredBlock, WantedBlock
from kvstore.errors import CorruptBlock

MAGIC = b"PKVB"
FORMAT_VERSION = 1

# magic, format version, header length, dtype, compression, is_private, layout version, layers,
# block size, kv heads, head dim, tp rank, tp size, scale bytes, tokens, fingerprint length,
# bytes of K, bytes of V, CRC of K and V, name, parent
_HEADER = struct.Struct("<4sHIBBBHHHHHHHIIHQQI32s32s")
_CRC = struct.Struct("<I")
_ALIGNMENT = 64
_DTYPES: tuple[KvDtype, ...] = ("bfloat16", "float16", "float32", "int8", "fp8_e4m3")
_COMPRESSIONS: tuple[Compression, ...] = ("none", "int8", "fp8")


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """One value as buffers to write one after another. error_bound: what compression may cost."""

    parts: tuple[Buffer, ...]
    num_bytes: int
    error_bound: float = 0.0

    def joined(self) -> bytes:
        """The value as one string of bytes; copies."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a value says of itself, its own checksum verified."""

    layout: BlockLayout
    compression: Compression
    name: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    is_private: bool
    header_bytes: int
    keys_bytes: int
    values_bytes: int
    payload_crc: int

    @property
    def value_bytes(self) -> int:
        """Length that the whole value must have."""
        return self.header_bytes + self.keys_bytes + self.values_bytes


def largest_value_bytes(layout: BlockLayout) -> int:
    """Most bytes that one block's value takes; below a server's proto-max-bulk-len it must be."""
    return _header_bytes(layout.block_size, len(layout.fingerprint)) + layout.payload_bytes


def encode(
    block: StoredBlock, *, layout: BlockLayout, compression: Compression = "none"
) -> EncodedBlock:
    """One value of this block; raises ValueError for a block that does not fit the layout.

    A block that cannot be compressed goes as it is.
    """
    check_fits(block, layout=layout)
    keys, values = memoryview(block.keys).cast("B"), memoryview(block.values).cast("B")
    bound = 0.0
    if compression != "none" and can_compress(layout):
        small_keys = compress_half(keys, layout=layout, compression=compression)
        small_values = compress_half(values, layout=layout, compression=compression)
        if small_keys and small_values:
            keys, values = memoryview(small_keys.data), memoryview(small_values.data)
            bound = max(small_keys.error_bound, small_values.error_bound)
        else:
            compression = "none"
    else:
        compression = "none"
    crc = crc32(values, crc32(keys, 0))
    header = _pack_header(block, layout, compression, (len(keys), len(values), crc))
    return EncodedBlock((header, keys, values), len(header) + len(keys) + len(values), bound)


def read_header(value: Buffer) -> BlockHeader:
    """What a value says it is; raises CorruptBlock. K and V are not looked at."""
    view = memoryview(value)
    if len(view) < _HEADER.size:
        raise CorruptBlock(f"{len(view)} bytes: shorter than a header", kind="truncated")
    fields = _HEADER.unpack_from(view)
    magic, format_version, header_bytes = fields[:3]
    if magic != MAGIC:
        raise CorruptBlock(f"magic={magic!r}: expected {MAGIC!r}", kind="damaged")
    if header_bytes > len(view):
        raise CorruptBlock(
            f"{len(view)} bytes: the header alone has {header_bytes}", kind="truncated"
        )
    end = header_bytes - _CRC.size
    if end < _HEADER.size or crc32(view[:end], 0) != _CRC.unpack_from(view, end)[0]:
        raise CorruptBlock("the header's CRC differs", kind="damaged")
    if format_version != FORMAT_VERSION:
        raise CorruptBlock(f"format={format_version}: expected {FORMAT_VERSION}", kind="foreign")
    return _unpack_header(view, fields)


def decode(value: Buffer, *, layout: BlockLayout, wanted: WantedBlock) -> StoredBlock:
    """The wanted block, every byte of it verified; raises CorruptBlock, which names what differs.

    K and V are views of `value` unless they were compressed.
    """
    header = read_header(value)
    if header.layout != layout:
        raise CorruptBlock(_first_difference(header.layout, layout), kind="foreign")
    if header.name != wanted.name:
        raise CorruptBlock(
            f"name={header.name.hex()}: expected {wanted.name.hex()}", kind="other_tokens"
        )
    if header.token_ids != wanted.token_ids:
        raise CorruptBlock("the tokens differ from those asked for", kind="other_tokens")
    return decode_unasked(value, header)


def decode_unasked(value: Buffer, header: BlockHeader) -> StoredBlock:
    """The block that a value holds, checked against nothing but itself; raises CorruptBlock."""
    view = memoryview(value).cast("B")
    if len(view) != header.value_bytes:
        raise CorruptBlock(f"{len(view)} bytes: expected {header.value_bytes}", kind="truncated")
    # A name that is not the hash of its tokens would serve these K and V for other tokens.
    if not header.is_private and child_hash(header.parent, header.token_ids) != header.name:
        raise CorruptBlock("the name is not the hash of parent and tokens", kind="damaged")
    payload = view[header.header_bytes :]
    if crc32(payload, 0) != header.payload_crc:
        raise CorruptBlock("the CRC of K and V differs", kind="damaged")
    keys: Buffer = payload[: header.keys_bytes]
    values: Buffer = payload[header.keys_bytes :]
    if header.compression != "none":
        keys = decompress_half(keys, layout=header.layout, compression=header.compression)
        values = decompress_half(values, layout=header.layout, compression=header.compression)
    return StoredBlock(
        header.name, header.parent, header.token_ids, keys, values, header.is_private
    )


def check_fits(block: StoredBlock, *, layout: BlockLayout) -> None:
    """Raises ValueError for a block that is not one of this layout."""
    for part in ("keys", "values"):
        num_bytes = memoryview(getattr(block, part)).nbytes
        if num_bytes != layout.half_bytes:
            raise ValueError(f"{part} of {num_bytes} bytes: expected {layout.half_bytes}")
    for part in ("name", "parent"):
        if len(getattr(block, part)) != HASH_BYTES:
            raise ValueError(f"{part} of {len(getattr(block, part))} bytes: expected {HASH_BYTES}")
    num_tokens = len(block.token_ids)
    if num_tokens > layout.block_size or (num_tokens < layout.block_size and not block.is_private):
        raise ValueError(f"{num_tokens} tokens: expected {layout.block_size}")


def _header_bytes(num_tokens: int, fingerprint_bytes: int) -> int:
    content = _HEADER.size + 4 * num_tokens + fingerprint_bytes + _CRC.size
    return -(-content // _ALIGNMENT) * _ALIGNMENT


def _pack_header(
    block: StoredBlock, layout: BlockLayout, compression: Compression, payload: tuple[int, int, int]
) -> bytes:
    fingerprint = layout.fingerprint.encode()
    header_bytes = _header_bytes(len(block.token_ids), len(fingerprint))
    keys_bytes, values_bytes, crc = payload
    fixed = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        header_bytes,
        _DTYPES.index(layout.dtype),
        _COMPRESSIONS.index(compression),
        block.is_private,
        layout.version,
        *layout.shape,
        layout.tp_rank,
        layout.tp_size,
        layout.scale_bytes,
        len(block.token_ids),
        len(fingerprint),
        keys_bytes,
        values_bytes,
        crc,
        block.name,
        block.parent,
    )
    tokens = np.asarray(block.token_ids, dtype="<i4").tobytes()
    content = (fixed + tokens + fingerprint).ljust(header_bytes - _CRC.size, b"\0")
    return content + _CRC.pack(crc32(content, 0))


def _unpack_header(view: memoryview, fields: tuple[object, ...]) -> BlockHeader:
    numbers = [int(number) for number in fields[3:19]]  # type: ignore[call-overload]
    num_tokens, fingerprint_bytes = numbers[11:13]
    tokens_end = _HEADER.size + 4 * num_tokens
    header_bytes = int(fields[2])  # type: ignore[call-overload]
    if header_bytes != _header_bytes(num_tokens, fingerprint_bytes):
        raise CorruptBlock("the header's lengths contradict each other", kind="damaged")
    fingerprint = bytes(view[tokens_end : tokens_end + fingerprint_bytes])
    try:
        layout = _layout(tuple(numbers[:11]), fingerprint)
        header = BlockHeader(
            layout=layout,
            compression=_COMPRESSIONS[numbers[1]],
            name=bytes(fields[19]),  # type: ignore[call-overload]
            parent=bytes(fields[20]),  # type: ignore[call-overload]
            token_ids=struct.unpack_from(f"<{num_tokens}i", view, _HEADER.size),
            is_private=bool(numbers[2]),
            header_bytes=header_bytes,
            keys_bytes=numbers[13],
            values_bytes=numbers[14],
            payload_crc=numbers[15],
        )
    except (ValueError, IndexError) as error:
        raise CorruptBlock(f"the header makes no sense: {error}", kind="damaged") from error
    _check_lengths(header)
    return header


# Values of one layout come by the hundred, and a layout checks itself when it is made.
@lru_cache(maxsize=64)
def _layout(numbers: tuple[int, ...], fingerprint: bytes) -> BlockLayout:
    dtype, _, _, version, layers, block_size, heads, head_dim, tp_rank, tp_size, scales = numbers
    return BlockLayout(
        fingerprint=fingerprint.decode("ascii"),
        dtype=_DTYPES[dtype],
        num_layers=layers,
        block_size=block_size,
        num_kv_heads=heads,
        head_dim=head_dim,
        tp_rank=tp_rank,
        tp_size=tp_size,
        scale_bytes=scales,
        version=version,
    )


def _check_lengths(header: BlockHeader) -> None:
    is_small = header.compression != "none"
    expected = compressed_bytes(header.layout) if is_small else header.layout.half_bytes
    if (header.keys_bytes, header.values_bytes) != (expected, expected):
        raise CorruptBlock(
            f"K of {header.keys_bytes} and V of {header.values_bytes} bytes: expected {expected}",
            kind="damaged",
        )


def _first_difference(found: BlockLayout, expected: BlockLayout) -> str:
    for name in BlockLayout.__slots__:
        if getattr(found, name) != getattr(expected, name):
            return f"{name}={getattr(found, name)}: expected {getattr(expected, name)}"
    raise AssertionError("equal layouts")
