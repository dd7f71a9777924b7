"""Names a full block by everything before it, so equal prefixes get equal names.

The name is a 256-bit chain hash (DESIGN 3): block *i* is named by its parent's name and its own
tokens; the root is named by whatever else changes the values of K and V (model fingerprint,
adapter) or who may share them (tenant salt), and by the block size. Two requests share a block
exactly when they share its name, so a name must never be shorter than the collision resistance
that separates two tenants (survey, complaint 17).
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

HASH_BYTES = 32

BlockHash = bytes
TokenIds = Sequence[int] | npt.NDArray[np.int32]


def root_hash(
    *, fingerprint: str, block_size: int, adapter: str = "", salt: bytes = b""
) -> BlockHash:
    """The parent of every first block that may share KV: same model, adapter, tenant, block size.

    Each part is length-prefixed, so no two different tuples of parts are hashed alike.
    """
    digest = hashlib.sha256(b"pagoda-block-root-1")
    for part in (fingerprint.encode(), adapter.encode(), salt):
        digest.update(struct.pack("<I", len(part)))
        digest.update(part)
    digest.update(struct.pack("<I", block_size))
    return digest.digest()


def child_hash(parent: BlockHash, block_tokens: TokenIds) -> BlockHash:
    """The name of one full block, given its parent's name and its own tokens in order."""
    tokens = np.asarray(block_tokens, dtype="<i4")
    return hashlib.sha256(parent + tokens.tobytes()).digest()


def block_hashes(token_ids: TokenIds, *, block_size: int, root: BlockHash) -> Iterator[BlockHash]:
    """Names of the full blocks of `token_ids`, first to last; a part-filled tail has no name."""
    tokens = np.asarray(token_ids, dtype="<i4")
    parent = root
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hashlib.sha256(parent + tokens[start : start + block_size].tobytes()).digest()
        yield parent
