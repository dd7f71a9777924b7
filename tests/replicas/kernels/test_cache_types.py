"""A KV cache of another type than the activations is the same cache for every back end."""

import pytest
import torch

from replicas.kernels.interface import AttentionShape, Kernels, LayerCache
from replicas.kernels.reference.cache_access import quantise
from tests.replicas.kernels.back_ends import BACK_ENDS, DTYPES, NotHere, make
from tests.replicas.kernels.test_contract import assert_near, batch, cache, naive, noise

# The compiled back end may have to be built first.
pytestmark = pytest.mark.slow

FP8 = torch.float8_e4m3fn
SHAPE = AttentionShape(6, 2, 64, 0.125)


@pytest.fixture(params=BACK_ENDS)
def back_end(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def kernels_of(back_end: str, dtype: torch.dtype) -> Kernels:
    try:
        return make(back_end, dtype)
    except NotHere as reason:
        pytest.skip(str(reason))


def held_as(kv: LayerCache, dtype: torch.dtype) -> LayerCache:
    """The same numbers in a cache of `dtype`."""
    if dtype.itemsize > 1:
        return LayerCache(kv.keys.to(dtype), kv.values.to(dtype))
    (keys, key_scales), (values, value_scales) = (
        quantise(numbers, dtype) for numbers in (kv.keys, kv.values)
    )
    return LayerCache(keys, values, key_scales, value_scales)


def wide(kv: LayerCache) -> LayerCache:
    """What a cache holds, in float64."""
    if kv.key_scales is None or kv.value_scales is None:
        return LayerCache(kv.keys.double(), kv.values.double())
    return LayerCache(
        kv.keys.float().double() * kv.key_scales[..., None].double(),
        kv.values.float().double() * kv.value_scales[..., None].double(),
    )


@pytest.mark.parametrize("held", [torch.int8, FP8, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_attention_reads_whatever_the_cache_holds(
    back_end: str, dtype: torch.dtype, held: torch.dtype
) -> None:
    kernels = kernels_of(back_end, dtype)
    contexts, queries = [1, 300, 17, 90, 600], [1, 1, 17, 30, 1]
    num_blocks = sum(-(-context // 16) for context in contexts) + 1
    rows = batch(contexts, queries, 16, num_blocks)
    kv = held_as(cache(SHAPE, num_blocks, 16, torch.float32), held)
    q = noise(sum(queries), SHAPE.num_heads, SHAPE.head_dim, seed=7).to(dtype)
    plan = kernels.plan_attention(rows, SHAPE, 16)
    truth = naive(q, wide(kv), SHAPE, rows)
    assert_near(kernels.attention(q, kv, SHAPE, plan), truth, dtype)


@pytest.mark.parametrize("held", [torch.int8, FP8], ids=str)
@pytest.mark.parametrize("head_dim", [24, 64])
def test_codes_and_scales_are_the_same_bits_everywhere(
    back_end: str, held: torch.dtype, head_dim: int
) -> None:
    kernels = kernels_of(back_end, torch.bfloat16)
    shape = AttentionShape(4, 2, head_dim, 1.0)
    rows = batch([40, 9], [40, 3], 4, 16)
    kv = held_as(LayerCache(*(torch.zeros(16, 4, 2, head_dim) for _ in range(2))), held)
    qkv = (noise(43, 8, head_dim) * torch.logspace(-6, 4, 43)[:, None, None]).bfloat16()
    qkv[3, 6] = 0.0
    qkv[4, 7, 5], qkv[5, 6, 2] = float("nan"), float("inf")
    still, none = torch.ones(43, head_dim).bfloat16(), torch.zeros(43, head_dim).bfloat16()
    plan = kernels.plan_attention(rows, shape, 4)
    values = qkv[:, 6:].clone()
    kernels.rotate_and_store(qkv[:, :6], qkv[:, 6:], (still, none), kv, plan)
    codes, scales = quantise(values, held)
    slots = torch.from_numpy(rows.slot_mapping)
    stored = kv.values.view(torch.uint8).flatten(0, 1)[slots]
    assert torch.equal(stored, codes.view(torch.uint8))
    assert kv.value_scales is not None
    assert torch.equal(kv.value_scales.flatten(0, 1)[slots], scales)
