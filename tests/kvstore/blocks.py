"""Makes blocks whose bytes follow from their tokens, so that a wrong one is seen at once."""

import numpy as np

from kvstore.block_hash import child_hash, root_hash
from kvstore.block_store import BlockLayout, StoredBlock, WantedBlock

LAYOUT = BlockLayout(
    fingerprint="feed" * 16,
    dtype="bfloat16",
    num_layers=2,
    block_size=4,
    num_kv_heads=2,
    head_dim=8,
)
ROOT = root_hash(fingerprint=LAYOUT.fingerprint, block_size=LAYOUT.block_size)


def half_of(token_ids, *, layout=LAYOUT, salt=0):
    """K or V bytes that no other tokens and no other salt give."""
    source = np.random.default_rng([salt, layout.block_size, *token_ids])
    numbers = source.standard_normal(layout.half_bytes // 2).astype(np.float32)
    # The upper half of a float32 is a bfloat16.
    return (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()[: layout.half_bytes]


def block(parent, token_ids, *, layout=LAYOUT):
    tokens = tuple(token_ids)
    return StoredBlock(
        child_hash(parent, tokens),
        parent,
        tokens,
        half_of(tokens, layout=layout),
        half_of(tokens, layout=layout, salt=1),
    )


def chain(num_blocks, *, first_token=0, layout=LAYOUT, root=ROOT):
    """Blocks of one prompt, each the parent of the next."""
    blocks, parent = [], root
    for number in range(num_blocks):
        start = first_token + number * layout.block_size
        blocks.append(block(parent, range(start, start + layout.block_size), layout=layout))
        parent = blocks[-1].name
    return blocks


def wanted(blocks):
    return [WantedBlock(each.name, each.token_ids) for each in blocks]


def names(blocks):
    return [each.name for each in blocks]


def same(found, expected):
    """Whether two blocks are equal, whatever kind of buffer holds their bytes."""
    return (
        (found.name, found.parent, found.token_ids, found.is_private)
        == (expected.name, expected.parent, expected.token_ids, expected.is_private)
        and bytes(found.keys) == bytes(expected.keys)
        and bytes(found.values) == bytes(expected.values)
    )


def all_same(found, expected):
    return len(found) == len(expected) and all(map(same, found, expected))
