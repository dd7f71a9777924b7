"""What every back end must compute, against plain formulas in float64."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, Kernels, LayerCache
from tests.replicas.kernels.back_ends import BACK_ENDS, DTYPES, NotHere, make

# The compiled back end may have to be built first.
pytestmark = pytest.mark.slow

# Share of the largest value that a result may be off by: a few roundings of the type.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2}


@pytest.fixture(params=BACK_ENDS)
def back_end(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=DTYPES)
def kernels(request: pytest.FixtureRequest, back_end: str) -> Kernels:
    try:
        return make(back_end, DTYPES[request.param])
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.fixture
def dtype(request: pytest.FixtureRequest, kernels: Kernels) -> torch.dtype:
    return DTYPES[request.node.callspec.params["kernels"]]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_near(result: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.shape == truth.shape
    worst = (result.double() - truth).abs().max() / truth.abs().max()
    assert worst < BOUNDS[dtype], worst


@pytest.mark.parametrize("num_rows", [1, 2, 5, 12, 13, 48, 200])
@pytest.mark.parametrize(("out", "width"), [(96, 64), (70, 34), (33, 7), (1, 128)])
def test_a_product_is_a_product(
    kernels: Kernels, dtype: torch.dtype, num_rows: int, out: int, width: int
) -> None:
    weight, bias = noise(out, width).to(dtype), noise(out, seed=1).to(dtype)
    x = noise(num_rows, width, seed=2).to(dtype)
    result = kernels.linear(x, kernels.pack_linear(weight, bias))
    assert result.dtype is dtype
    assert_near(result, x.double() @ weight.double().T + bias.double(), dtype)


def test_a_product_without_rows_is_empty(kernels: Kernels, dtype: torch.dtype) -> None:
    packed = kernels.pack_linear(noise(32, 16).to(dtype), None)
    assert kernels.linear(torch.empty(0, 16, dtype=dtype), packed).shape == (0, 32)


@pytest.mark.parametrize("width", [8, 24, 40, 576])
def test_norms_divide_by_the_root_mean_square(
    kernels: Kernels, dtype: torch.dtype, width: int
) -> None:
    x, weight = noise(9, width).to(dtype), noise(width, seed=1).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_near(kernels.rms_norm(x, weight, 1e-5), exact * weight.double(), dtype)


def test_a_norm_of_heads_has_a_weight_for_each(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = noise(9, 5, 16).to(dtype), noise(5, 16, seed=1).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_near(kernels.rms_norm(x, weight, 1e-5), exact * weight.double(), dtype)


def test_the_sum_of_a_fused_norm_is_kept_apart(kernels: Kernels, dtype: torch.dtype) -> None:
    x, residual = noise(9, 48).to(dtype), noise(9, 48, seed=1)
    weight, before = noise(48, seed=2).to(dtype), residual.clone()
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    exact = x.double() + residual.double()
    assert_near(total, exact, torch.float32)
    exact /= (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_near(normed, exact * weight.double(), dtype)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("inner", [8, 72, 1536])
def test_silu_gates_the_second_half(kernels: Kernels, dtype: torch.dtype, inner: int) -> None:
    gate_up = (noise(7, 2 * inner) * 4).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert_near(kernels.silu_mul(gate_up), gate * torch.sigmoid(gate) * up, dtype)


def batch(
    contexts: Sequence[int], queries: Sequence[int], block_size: int, num_blocks: int
) -> Batch:
    """Rows over blocks dealt at random; each row's last tokens are its queries."""
    deck = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    counts = [-(-context // block_size) for context in contexts]
    tables = np.full((len(contexts), max(counts)), num_blocks - 1, dtype=np.int32)
    slots, positions = [], []
    for row, (context, count, own) in enumerate(zip(contexts, counts, queries, strict=True)):
        tables[row, :count], deck = deck[:count], deck[count:]
        at = np.arange(context - own, context, dtype=np.int64)
        positions.append(at)
        slots.append(tables[row][at // block_size].astype(np.int64) * block_size + at % block_size)
    return Batch(
        step=0,
        token_ids=np.zeros(sum(queries), dtype=np.int64),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_start=np.cumsum([0, *queries], dtype=np.int32),
        context_lens=np.array(contexts, dtype=np.int32),
        block_tables=tables,
        slots=np.arange(len(contexts), dtype=np.int32),
        samples=(),
    )


def cache(
    shape: AttentionShape, num_blocks: int, block_size: int, dtype: torch.dtype
) -> LayerCache:
    sizes = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
    return LayerCache(noise(*sizes, seed=5).to(dtype), noise(*sizes, seed=6).to(dtype))


def naive(q: torch.Tensor, kv: LayerCache, shape: AttentionShape, rows: Batch) -> torch.Tensor:
    """One query head of one token after another, in float64."""
    result = torch.zeros(q.shape, dtype=torch.float64)
    size = kv.keys.shape[1]
    per_kv = shape.num_heads // shape.num_kv_heads
    for row, context in enumerate(rows.context_lens.tolist()):
        table = torch.from_numpy(rows.block_tables[row, : -(-context // size)]).long()
        keys = kv.keys[table].flatten(0, 1)[:context].double()
        values = kv.values[table].flatten(0, 1)[:context].double()
        start, end = rows.query_start[row : row + 2].tolist()
        for token in range(start, end):
            last = context - (end - token) + 1
            first = max(0, last - shape.window) if shape.window else 0
            for head in range(shape.num_heads):
                scores = keys[first:last, head // per_kv] @ q[token, head].double() * shape.scale
                result[token, head] = torch.softmax(scores, 0) @ values[first:last, head // per_kv]
    return result.flatten(1)


SHAPES = {
    "gqa": AttentionShape(6, 2, 64, 0.125),
    "mha": AttentionShape(2, 2, 32, 0.2),
    "many heads of one": AttentionShape(10, 1, 64, 0.125),
    "odd size": AttentionShape(4, 2, 24, 0.2),
    "large head": AttentionShape(4, 1, 128, 0.09),
    "window": AttentionShape(6, 2, 64, 0.125, window=37),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("block_size", [4, 16, 48])
def test_attention_over_shuffled_blocks_of_ragged_rows(
    kernels: Kernels, dtype: torch.dtype, shape: AttentionShape, block_size: int
) -> None:
    contexts, queries = [1, 300, 17, 90, 256, 257, 64], [1, 1, 17, 30, 1, 70, 2]
    num_blocks = sum(-(-context // block_size) for context in contexts) + 1
    rows = batch(contexts, queries, block_size, num_blocks)
    kv = cache(shape, num_blocks, block_size, dtype)
    q = noise(sum(queries), shape.num_heads, shape.head_dim, seed=7).to(dtype)
    plan = kernels.plan_attention(rows, shape, block_size)
    assert_near(kernels.attention(q, kv, shape, plan), naive(q, kv, shape, rows), dtype)


def test_a_lone_long_context_is_cut_between_threads(kernels: Kernels, dtype: torch.dtype) -> None:
    shape = SHAPES["gqa"]
    rows = batch([1500], [1], 16, 100)
    kv = cache(shape, 100, 16, dtype)
    q = noise(1, shape.num_heads, shape.head_dim, seed=7).to(dtype)
    plan = kernels.plan_attention(rows, shape, 16)
    assert_near(kernels.attention(q, kv, shape, plan), naive(q, kv, shape, rows), dtype)


@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_heads_are_turned_and_stored_where_the_slots_say(
    kernels: Kernels, dtype: torch.dtype, head_dim: int
) -> None:
    shape = AttentionShape(4, 2, head_dim, 1.0)
    rows = batch([5, 9], [5, 3], 4, 8)
    kv = cache(shape, 8, 4, dtype)
    untouched = kv.keys.clone()
    qkv = noise(8, 8, head_dim).to(dtype)
    cos, sin = noise(8, head_dim, seed=1).to(dtype), noise(8, head_dim, seed=2).to(dtype)
    exact = qkv[:, :6].double() * cos.double()[:, None]
    exact += qkv[:, :6].double().roll(head_dim // 2, 2) * sin.double()[:, None]
    values = qkv[:, 6:].clone()
    plan = kernels.plan_attention(rows, shape, 4)
    turned = kernels.rotate_and_store(qkv[:, :6], qkv[:, 6:], (cos, sin), kv, plan)
    assert_near(turned, exact[:, :4], dtype)
    slots = torch.from_numpy(rows.slot_mapping)
    assert_near(kv.keys.flatten(0, 1)[slots], exact[:, 4:], dtype)
    assert torch.equal(kv.values.flatten(0, 1)[slots], values)
    left = torch.ones(32, dtype=torch.bool).index_fill_(0, slots, False)
    assert torch.equal(kv.keys.flatten(0, 1)[left], untouched.flatten(0, 1)[left])
