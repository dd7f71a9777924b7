"""The table by which a prefill replica hands a request over: which blocks, of which try, and where.

    value = fixed header | request id | namespace | block names | first tokens | offers | CRC

It is written only after every block that it names was acknowledged (DESIGN 5). A reader trusts
nothing in it: the generation fences off earlier tries, the namespace other models and layouts, the
names and the hash of the tokens anything but the very same request. All numbers are little-endian.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from kvstore.block_hash import HASH_BYTES, BlockHash
from kvstore.errors import CorruptTable

MAGIC = b"PKHT"
FORMAT_VERSION = 1
MAX_BLOCKS = 1 << 16
MAX_TABLE_BYTES = 4 * 1024 * 1024
MAX_TEXT_BYTES = 1024
MAX_OFFERS = 8

# magic, format version, generation, tokens whose KV is handed over, tokens in the tail, seed,
# position of the next token to be sampled, deadline in ms, blocks, sampled tokens, offers,
# bytes of request id and of namespace, hash of the tokens
_HEADER = struct.Struct("<4sHIIIqIIIHHHH32s")
_CRC = struct.Struct("<I")
_SHORT = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to the blocks. transport: its name. address: what a reader needs to use it."""

    transport: str
    address: str


@dataclass(frozen=True, slots=True)
class HandoffTable:
    """Everything that another engine needs to go on with a request.

    names: of the full blocks, first to last; the tail, if num_tail_tokens is not 0, has the private
    name `tail_name`. num_tokens: the first tokens of the request, whose K and V these blocks hold.
    token_hash: of those tokens (`hash_of_tokens`). token_ids: what was sampled after them. seed,
    position: all that the next random number depends on. deadline_s: how long the blocks are kept.
    namespace: of the layout.
    """

    request_id: str
    generation: int
    names: tuple[BlockHash, ...]
    num_tokens: int
    num_tail_tokens: int
    token_hash: bytes
    token_ids: tuple[int, ...]
    seed: int
    position: int
    deadline_s: float
    namespace: str = ""
    offers: tuple[Offer, ...] = ()


def table_key(request_id: str, generation: int) -> BlockHash:
    """The name of a table; nobody guesses it who does not know the request."""
    return _private(b"pagoda-handoff", request_id, generation)


def tail_name(request_id: str, generation: int) -> BlockHash:
    """The private name of the part-filled last block; no block hash, since those are of tokens."""
    return _private(b"pagoda-handoff-tail", request_id, generation)


def hash_of_tokens(token_ids: Sequence[int]) -> bytes:
    """32 bytes that only these tokens have."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}i", *token_ids)).digest()


def encode_table(table: HandoffTable) -> bytes:
    """The table as one value; raises ValueError for one that is larger than a table may be."""
    request_id, namespace = table.request_id.encode(), table.namespace.encode()
    texts = [text.encode() for offer in table.offers for text in (offer.transport, offer.address)]
    if max(map(len, (request_id, namespace, *texts))) > MAX_TEXT_BYTES:
        raise ValueError(f"a text of the table is longer than {MAX_TEXT_BYTES} bytes")
    if len(table.names) > MAX_BLOCKS or len(table.offers) > MAX_OFFERS:
        raise ValueError(f"{len(table.names)} blocks: expected at most {MAX_BLOCKS}")
    header = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        table.generation,
        table.num_tokens,
        table.num_tail_tokens,
        table.seed,
        table.position,
        round(table.deadline_s * 1000),
        len(table.names),
        len(table.token_ids),
        len(table.offers),
        len(request_id),
        len(namespace),
        table.token_hash,
    )
    tokens = struct.pack(f"<{len(table.token_ids)}i", *table.token_ids)
    offers = b"".join(_SHORT.pack(len(text)) + text for text in texts)
    content = b"".join((header, request_id, namespace, *table.names, tokens, offers))
    return content + _CRC.pack(crc32(content, 0))


def decode_table(value: bytes) -> HandoffTable:
    """The table that was encoded; raises CorruptTable for anything else."""
    if not _HEADER.size + _CRC.size <= len(value) <= MAX_TABLE_BYTES:
        raise CorruptTable(f"{len(value)} bytes: no table has that many")
    content = value[: -_CRC.size]
    if crc32(content, 0) != _CRC.unpack_from(value, len(content))[0]:
        raise CorruptTable("the CRC differs")
    magic, version = content[:4], _SHORT.unpack_from(content, 4)[0]
    if magic != MAGIC or version != FORMAT_VERSION:
        raise CorruptTable(f"magic={magic!r} format={version}: expected {MAGIC!r} {FORMAT_VERSION}")
    try:
        return _unpack(content)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptTable(f"the table makes no sense: {error}") from error


def _unpack(content: bytes) -> HandoffTable:
    fields = _HEADER.unpack_from(content)
    generation, num_tokens, num_tail_tokens, seed, position, deadline_ms = fields[2:8]
    num_blocks, num_sampled, num_offers, id_bytes, namespace_bytes, token_hash = fields[8:]
    reader = _Reader(content, _HEADER.size)
    table = HandoffTable(
        request_id=reader.take(id_bytes).decode(),
        namespace=reader.take(namespace_bytes).decode(),
        generation=generation,
        names=tuple(reader.take(HASH_BYTES) for _ in range(num_blocks)),
        num_tokens=num_tokens,
        num_tail_tokens=num_tail_tokens,
        token_hash=token_hash,
        token_ids=struct.unpack(f"<{num_sampled}i", reader.take(4 * num_sampled)),
        seed=seed,
        position=position,
        deadline_s=deadline_ms / 1000,
        offers=tuple(Offer(reader.text(), reader.text()) for _ in range(num_offers)),
    )
    reader.end()
    return table


class _Reader:
    """Takes bytes from the front, and never more than there are."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._at = start

    def take(self, num_bytes: int) -> bytes:
        taken = self._content[self._at : self._at + num_bytes]
        if len(taken) != num_bytes:
            raise CorruptTable("the table ends too early")
        self._at += num_bytes
        return taken

    def text(self) -> str:
        (num_bytes,) = _SHORT.unpack(self.take(_SHORT.size))
        return self.take(num_bytes).decode()

    def end(self) -> None:
        if self._at != len(self._content):
            raise CorruptTable(f"{len(self._content) - self._at} bytes too many")


def _private(purpose: bytes, request_id: str, generation: int) -> bytes:
    digest = hashlib.sha256(purpose)
    digest.update(struct.pack("<I", generation))
    digest.update(request_id.encode())
    return digest.digest()
