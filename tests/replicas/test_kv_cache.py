"""The number of blocks follows from memory, and says so."""

import logging
from typing import Any

import pytest
import torch

from replicas import kv_cache
from replicas.config import EngineConfig, SchedulerConfig
from replicas.host_memory import HostMemory
from replicas.kv_cache import KvCacheSize, allocate, block_bytes, size_kv_cache
from replicas.models.model_config import ModelConfig

MODEL = ModelConfig.from_values(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    name="m",
)
CPU = torch.device("cpu")
# K and V of 3 layers, 2 heads of 16 numbers, 8 tokens, 2 bytes.
BLOCK_BYTES = 2 * 3 * 2 * 16 * 8 * 2


def size(*, max_model_len: int = 256, **settings: Any) -> KvCacheSize:
    scheduler = SchedulerConfig(block_size=8, max_model_len=max_model_len)
    config = EngineConfig(model="m", scheduler=scheduler, **settings)
    return size_kv_cache(MODEL, config, torch.bfloat16, max_model_len=512, device=CPU)


def test_a_block_is_as_large_as_the_formula_says() -> None:
    assert block_bytes(MODEL, 8, torch.bfloat16) == BLOCK_BYTES
    assert block_bytes(MODEL, 8, torch.float32) == 2 * BLOCK_BYTES


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_quantised_block_is_half_as_large_and_has_its_scales(dtype: torch.dtype) -> None:
    num_scales = 2 * 3 * 2 * 8
    assert block_bytes(MODEL, 8, dtype) == BLOCK_BYTES // 2 + 4 * num_scales


def test_more_blocks_of_fewer_bytes_fit_the_same_memory() -> None:
    scheduler = SchedulerConfig(block_size=8)
    memory_bytes = 100 * BLOCK_BYTES
    config = EngineConfig(model="m", scheduler=scheduler, kv_cache_memory_bytes=memory_bytes)
    small = size_kv_cache(MODEL, config, torch.int8, max_model_len=512, device=CPU)
    assert small.num_blocks == memory_bytes // block_bytes(MODEL, 8, torch.int8) == 160


def test_a_quantised_cache_has_scales_in_every_layer() -> None:
    caches = allocate(MODEL, size(num_blocks_override=5), torch.int8, CPU).layers
    for cache in caches:
        assert cache.key_scales is not None
        assert cache.value_scales is not None
        assert cache.key_scales.shape == cache.value_scales.shape == (5, 8, 2)


def test_blocks_fill_the_memory_that_was_set() -> None:
    assert size(kv_cache_memory_bytes=100 * BLOCK_BYTES + 5).num_blocks == 100


def test_an_override_wins_over_memory() -> None:
    assert size(kv_cache_memory_bytes=100 * BLOCK_BYTES, num_blocks_override=40).num_blocks == 40


def test_engines_of_one_node_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "host_memory", lambda: HostMemory(2**31, 2**31))
    alone = size(kv_cache_memory_share=0.5).num_blocks
    assert alone == 2**30 // BLOCK_BYTES
    assert size(kv_cache_memory_share=0.5, engines_per_node=4).num_blocks == alone // 4


def test_no_more_is_taken_than_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "host_memory", lambda: HostMemory(2**31, 2**20))
    assert size(kv_cache_memory_share=0.5).num_blocks == int(0.9 * 2**20) // BLOCK_BYTES


def test_the_longest_context_is_bounded_by_settings_model_and_blocks() -> None:
    assert size(max_model_len=256, num_blocks_override=100).max_model_len == 256
    assert size(max_model_len=4096, num_blocks_override=100).max_model_len == 512
    assert size(max_model_len=256, num_blocks_override=10).max_model_len == 80


def test_memory_for_no_block_at_all_is_an_error_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=rf"1000 bytes .*no block of {BLOCK_BYTES} bytes"):
        size(kv_cache_memory_bytes=1000)


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="replicas.kv_cache"):
        size(num_blocks_override=40)
    assert f"num_blocks=40 block_size=8 block_bytes={BLOCK_BYTES}" in caplog.text


def test_caches_have_the_shape_that_kernels_expect_and_start_at_zero() -> None:
    caches = allocate(MODEL, size(num_blocks_override=5), torch.bfloat16, CPU).layers
    assert len(caches) == 3
    for cache in caches:
        assert cache.keys.shape == cache.values.shape == (5, 8, 2, 16)
        assert not cache.keys.any()
        assert not cache.values.any()
