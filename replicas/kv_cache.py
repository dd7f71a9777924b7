"""Decides how many blocks of keys and values memory has room for, and allocates them."""

import logging
import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch

from kvstore.block_store import BlockLayout, KvDtype
from replicas.config import EngineConfig, KvCacheDtype
from replicas.host_memory import host_memory
from replicas.kernels.interface import LayerCache
from replicas.models.model_config import ModelConfig

log = logging.getLogger(__name__)

# Never ask for more than this share of what is free right now.
_MOST_OF_FREE = 0.9
_KV_DTYPES: dict[torch.dtype, KvDtype] = {
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8_e4m3",
}
_ASKED: dict[KvCacheDtype, torch.dtype] = {
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_SCALE_DTYPE = torch.float32


@dataclass(frozen=True, slots=True)
class KvCacheSize:
    """num_blocks of block_bytes each (K and V of one block in all layers); why says who chose.

    max_model_len: longest context in tokens that model, settings and the blocks allow.
    """

    num_blocks: int
    block_bytes: int
    block_size: int
    max_model_len: int
    why: str


def cache_dtype(asked: KvCacheDtype, dtype: torch.dtype) -> torch.dtype:
    """What K and V are kept in; dtype: of the activations."""
    return _ASKED.get(asked, dtype)


def is_quantised(dtype: torch.dtype) -> bool:
    """Whether numbers of this type need a scale beside them."""
    return dtype in (torch.int8, torch.float8_e4m3fn)


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of K and V of one block in all layers: 2 * layers * heads * dim * size (lecture 10).

    A quantised cache adds a scale for each token and head.
    """
    vectors = 2 * model.num_layers * model.num_kv_heads * block_size
    scale_bytes = _SCALE_DTYPE.itemsize if is_quantised(dtype) else 0
    return vectors * (model.head_dim * dtype.itemsize + scale_bytes)


def size_kv_cache(
    model: ModelConfig,
    config: EngineConfig,
    dtype: torch.dtype,
    *,
    max_model_len: int,
    device: torch.device,
    beside_bytes: int = 0,
) -> KvCacheSize:
    """How many blocks there will be: as overridden, or as many as the memory for them holds.

    max_model_len: longest context that the model was made for. beside_bytes: what a small model
    keeps with each block. ValueError if not one block fits.
    """
    size = config.scheduler.block_size
    bytes_each = block_bytes(model, size, dtype)
    if config.num_blocks_override:
        num_blocks, why = config.num_blocks_override, "num_blocks_override"
    else:
        room_bytes, why = _room_bytes(config, device)
        num_blocks = room_bytes // (bytes_each + beside_bytes)
        if num_blocks < 1:
            raise ValueError(
                f"kv cache: {room_bytes} bytes ({why}) hold no block of {bytes_each} bytes; raise "
                "kv_cache_memory_bytes or lower block_size"
            )
    asked = min(max_model_len, config.scheduler.max_model_len)
    allowed = min(asked, num_blocks * size)
    if allowed < asked:
        log.warning(
            "kv cache smaller than one request max_model_len=%d lowered_to=%d", asked, allowed
        )
    log.info(
        "kv cache num_blocks=%d block_size=%d block_bytes=%d dtype=%s mib=%.1f max_model_len=%d "
        "why=%r",
        num_blocks,
        size,
        bytes_each,
        _KV_DTYPES[dtype],
        num_blocks * bytes_each / 2**20,
        allowed,
        why,
    )
    return KvCacheSize(num_blocks, bytes_each, size, allowed, why)


class KvCache:
    """K and V of every layer. keys, values: [num_layers, num_blocks, block_size, G, D].

    key_scales, value_scales: [num_layers, num_blocks, block_size, G] of a quantised cache.
    One tensor for all layers, so that a block moves in one copy; a layer sees its own part.
    """

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_scales: torch.Tensor | None = None,
        value_scales: torch.Tensor | None = None,
    ) -> None:
        parts = (keys, key_scales, values, value_scales)
        self._parts = tuple(part for part in parts if part is not None)
        self.device = keys.device
        self.layers = [
            LayerCache(
                keys[layer],
                values[layer],
                None if key_scales is None else key_scales[layer],
                None if value_scales is None else value_scales[layer],
            )
            for layer in range(len(keys))
        ]

    def parts(self) -> tuple[torch.Tensor, ...]:
        """What makes up a block, in the order of kvstore.block_store.BlockLayout.

        Each is [num_layers, num_blocks, ...] and contiguous.
        """
        return self._parts


def allocate(
    model: ModelConfig, size: KvCacheSize, dtype: torch.dtype, device: torch.device
) -> KvCache:
    """Zeroed blocks: a masked slot is multiplied by 0, and chance bytes could be NaN.

    On a CPU the system hands out zeroed pages as they are first used, so a large cache costs
    nothing at start; torch.zeros writes to every page (10 s for 6 GB).
    """

    def zeros(*tail: int, dtype: torch.dtype) -> torch.Tensor:
        shape = (model.num_layers, size.num_blocks, size.block_size, *tail)
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        # numpy puts its own notes before the data; a head's numbers shall fill whole cache lines.
        num_bytes = math.prod(shape) * dtype.itemsize
        pages = np.zeros(num_bytes + mmap.PAGESIZE, dtype=np.uint8)
        start = -pages.ctypes.data % mmap.PAGESIZE
        return torch.from_numpy(pages)[start : start + num_bytes].view(dtype).view(shape)

    heads = model.num_kv_heads
    halves = [zeros(heads, model.head_dim, dtype=dtype) for _ in range(2)]
    if not is_quantised(dtype):
        return KvCache(*halves)
    return KvCache(*halves, *(zeros(heads, dtype=_SCALE_DTYPE) for _ in range(2)))


def block_layout(
    model: ModelConfig, block_size: int, dtype: torch.dtype, *, fingerprint: str
) -> BlockLayout:
    """How the bytes of one block lie, in a host slot and in a block store."""
    scales = model.num_layers * block_size * model.num_kv_heads if is_quantised(dtype) else 0
    return BlockLayout(
        fingerprint=fingerprint,
        dtype=_KV_DTYPES[dtype],
        num_layers=model.num_layers,
        block_size=block_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        scale_bytes=scales * _SCALE_DTYPE.itemsize,
    )


def _room_bytes(config: EngineConfig, device: torch.device) -> tuple[int, str]:
    if config.kv_cache_memory_bytes:
        return config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        used_bytes = total_bytes - free_bytes
        share = config.gpu_memory_utilization
        return int(total_bytes * share) - used_bytes, f"gpu_memory_utilization={share}"
    share = config.kv_cache_memory_share / config.engines_per_node
    why = f"kv_cache_memory_share={config.kv_cache_memory_share}/{config.engines_per_node} engines"
    memory = host_memory()
    wanted_bytes = int(memory.total_bytes * share)
    free_bytes = int(memory.available_bytes * _MOST_OF_FREE)
    return (wanted_bytes, why) if wanted_bytes <= free_bytes else (free_bytes, "free memory")
