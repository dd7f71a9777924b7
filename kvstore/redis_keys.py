"""Names of keys in Redis, so that people can read them and every part of the house agrees.

    pagoda:{namespace}:{hash}         a block; namespace is BlockLayout.namespace, hash is hex
    pagoda:{namespace}:{hash}:pins    the leases that pin it
    pagoda:handoff:{hash}:table       the block table of a hand-off, and the tail beside it:
    pagoda:handoff:{hash}:tail        neither looks like a block's key

The braces around the hash are part of the key: in a cluster they put a block and its pins on one
node, and the blocks of a model on all of them.
"""

from kvstore.block_hash import HASH_BYTES, BlockHash

PREFIX = b"pagoda:"
_PINS = b":pins"
_HASH_LENGTH = 2 * HASH_BYTES


def block_key(namespace: str, name: BlockHash) -> bytes:
    """Where a block lies."""
    return b"%s%s:{%s}" % (PREFIX, namespace.encode(), name.hex().encode())


def pins_key(key: bytes) -> bytes:
    """Where the leases on a block lie."""
    return key + _PINS


def handoff_keys(key: BlockHash) -> tuple[bytes, bytes]:
    """Where the table of a hand-off lies, and its tail block; on one node of a cluster."""
    digits = key.hex().encode()
    return (b"%shandoff:{%s}:table" % (PREFIX, digits), b"%shandoff:{%s}:tail" % (PREFIX, digits))


def pattern(namespace: str | None = None) -> bytes:
    """What SCAN must match to find the blocks of one namespace, or of all."""
    # A namespace holds no character that means anything in a pattern.
    return b"%s%s:{*}" % (PREFIX, (namespace or "*").encode())


def split_key(key: bytes) -> tuple[str, BlockHash] | None:
    """Namespace and name of a block's key; None for any other key."""
    namespace, _, rest = key.removeprefix(PREFIX).rpartition(b":")
    digits = rest.removeprefix(b"{").removesuffix(b"}")
    if not key.startswith(PREFIX) or len(rest) != _HASH_LENGTH + 2 or len(digits) != _HASH_LENGTH:
        return None
    try:
        return namespace.decode(), bytes.fromhex(digits.decode())
    except ValueError:
        return None
