"""Writes changes of a prefix cache as vLLM 0.33 does: a batch is one MessagePack array.

batch = [Unix seconds, [event, ...], data-parallel rank]; an event is a map whose `type` names it.
Readers made for older releases, whose events were arrays, need a version that takes maps.
"""

from collections.abc import Iterable

import msgspec

from cluster.kv_events.config import HashForm
from replicas.request import KvEvent

_LOW_64 = (1 << 64) - 1
# What vLLM calls the first tier, whatever it is made of.
_MEDIUM = "GPU"


def encode_batch(
    events: Iterable[KvEvent], *, at: float, block_size: int, hashes: HashForm
) -> bytes:
    """One batch. at: Unix seconds. block_size: tokens of a block. hashes: form of block names."""
    encoded = [_event(event, block_size, hashes) for event in events]
    return msgspec.msgpack.encode([at, encoded, 0])


def _event(event: KvEvent, block_size: int, hashes: HashForm) -> dict[str, object]:
    names = [_name(name, hashes) for name in event.block_hashes]
    if event.kind == "stored":
        return {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None if event.parent is None else _name(event.parent, hashes),
            "token_ids": list(event.token_ids),
            "block_size": block_size,
            "lora_id": None,
            "medium": _MEDIUM,
            "lora_name": None,
        }
    if event.kind == "removed":
        return {"type": "BlockRemoved", "block_hashes": names, "medium": _MEDIUM}
    return {"type": "AllBlocksCleared"}


def _name(name: bytes, hashes: HashForm) -> int | bytes:
    return name if hashes == "bytes" else int.from_bytes(name, "big") & _LOW_64
