"""In deterministic mode the bits of a row do not depend on batch, chunks or blocks."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicas.kernels.interface import Kernels
from replicas.kernels.reference.backend import DeterministicKernels, ReferenceKernels
from replicas.kernels.reference.split_attention import merge
from replicas.model_runner import ModelRunner
from tests.replicas.kernels import back_ends
from tests.replicas.tiny_models import (
    Part,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)

# Every case computes each row many times, alone and among others.
pytestmark = pytest.mark.slow

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BACK_ENDS = ("reference", "cpu")
DETERMINISTIC = [name for name in back_ends.BACK_ENDS if name != "reference"]
NUM_BLOCKS = 1024
# Some are longer than one and two splits of keys, so that parts are merged.
PROMPTS = random_prompts([1, 2, 3, 17, 40, 256, 257, 300, 590], seed=11)
few_examples = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@cache
def runner_of(family: str, dtype: str, back_end: str) -> ModelRunner:
    model = save_tiny(Path(mkdtemp(prefix="tiny-")), family, max_position_embeddings=1024)
    return model.runner(
        dtype=dtype,
        kernels=back_end,
        deterministic=True,
        num_blocks_override=NUM_BLOCKS,
        max_model_len=1024,
    )


@cache
def logits_alone(family: str, dtype: str, back_end: str) -> list[torch.Tensor]:
    """Each prompt whole, in a batch of its own."""
    alone = []
    for seed, prompt in enumerate(PROMPTS):
        (request,) = paged_requests([prompt], seed=seed, num_blocks=NUM_BLOCKS)
        alone.append(runner_of(family, dtype, back_end).logits(batch_of([request.whole()]))[0])
    return alone


def make(back_end: str, dtype: torch.dtype) -> Kernels:
    try:
        return back_ends.make(back_end, dtype)
    except back_ends.NotHere as reason:
        pytest.skip(str(reason))


def steps(
    chosen: Sequence[int], cuts: Sequence[Sequence[int]], *, seed: int
) -> Iterator[list[tuple[int, Part]]]:
    """Steps in which every chosen prompt advances to its next cut, over blocks dealt by seed."""
    prompts = [PROMPTS[index] for index in chosen]
    requests = paged_requests(prompts, seed=seed, num_blocks=NUM_BLOCKS)
    waiting = [
        (index, request, [0, *sorted({cut for cut in own if cut < len(request.token_ids)})])
        for index, request, own in zip(chosen, requests, cuts, strict=True)
    ]
    while waiting:
        parts = []
        for index, request, starts in waiting:
            end = starts[1] if len(starts) > 1 else len(request.token_ids)
            parts.append((index, request.part(starts.pop(0), end)))
        yield parts
        waiting = [each for each in waiting if each[2]]


@pytest.mark.slow
@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3_windowed", "llama_one_kv_head"])
@given(data=st.data())
@few_examples
def test_any_batch_and_any_chunks_give_the_bits_of_a_lone_whole_run(
    family: str, dtype: str, back_end: str, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(PROMPTS))), min_size=1, unique=True))
    cuts = [
        data.draw(st.lists(st.integers(1, max(1, len(PROMPTS[index]) - 1)), max_size=5))
        for index in chosen
    ]
    alone = logits_alone(family, dtype, back_end)
    for step in steps(chosen, cuts, seed=data.draw(st.integers(0, 1000))):
        logits = runner_of(family, dtype, back_end).logits(batch_of([part for _, part in step]))
        for row, (index, part) in enumerate(step):
            if part.end == len(PROMPTS[index]):
                assert torch.equal(logits[row], alone[index])


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_among_strangers_give_the_bits_of_a_lone_whole_run(
    dtype: str, back_end: str
) -> None:
    # First, since it runs over the same blocks.
    alone = logits_alone("llama", dtype, back_end)
    chosen, cuts = [7, 0, 4, 2], [[100, 101, 290], [], [1, 39], [2]]
    for step in steps(chosen, cuts, seed=5):
        logits = runner_of("llama", dtype, back_end).logits(batch_of([part for _, part in step]))
        for row, (index, part) in enumerate(step):
            if part.end == len(PROMPTS[index]):
                assert torch.equal(logits[row], alone[index])


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_token_by_token_gives_the_bits_of_one_prefill(dtype: str, back_end: str) -> None:
    runner, alone = runner_of("llama", dtype, back_end), logits_alone("llama", dtype, back_end)
    (request,) = paged_requests([PROMPTS[4]], seed=3, num_blocks=NUM_BLOCKS)
    for end in range(1, len(request.token_ids) + 1):
        logits = runner.logits(batch_of([request.part(end - 1, end)]))
    assert torch.equal(logits[0], alone[4])


@pytest.mark.parametrize("back_end", DETERMINISTIC)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("out", "width"), [(960, 576), (576, 1536), (70, 33), (4096, 2048)])
def test_a_product_row_has_the_same_bits_at_every_batch_size(
    out: int, width: int, dtype: torch.dtype, back_end: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out, width, generator=generator).to(dtype)
    bias = torch.randn(out, generator=generator).to(dtype)
    x = torch.randn(300, width, generator=generator).to(dtype)
    kernels = make(back_end, dtype)
    packed = kernels.pack_linear(weight, bias)
    whole = kernels.linear(x, packed)
    for num_rows in (1, 2, 3, 7, 8, 9, 31, 65, 200, 299):
        start = 300 - num_rows
        assert torch.equal(kernels.linear(x[start:], packed), whole[start:])


@pytest.mark.parametrize("back_end", DETERMINISTIC)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("width", [40, 72, 576, 1536, 8192])
def test_norms_and_activations_have_the_same_bits_at_every_batch_size(
    width: int, dtype: torch.dtype, back_end: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(200, 2 * width, generator=generator) * 3).to(dtype)
    weight = torch.randn(2 * width, generator=generator).to(dtype)
    kernels = make(back_end, dtype)
    activated = kernels.silu_mul(x)
    normed, summed = kernels.add_rms_norm(x, x.roll(1, 1), weight, 1e-5)
    for start, end in ((0, 1), (3, 5), (17, 24), (50, 199)):
        part = x[start:end].clone()
        assert torch.equal(kernels.silu_mul(part), activated[start:end])
        own, total = kernels.add_rms_norm(part, part.roll(1, 1), weight, 1e-5)
        assert torch.equal(own, normed[start:end])
        assert torch.equal(total, summed[start:end])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_deterministic_results_stay_near_the_fast_ones(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    x = torch.randn(37, 64, generator=generator).to(dtype)
    fast, fixed = ReferenceKernels(dtype), DeterministicKernels(dtype)
    product = fast.linear(x, fast.pack_linear(weight, None))
    torch.testing.assert_close(fixed.linear(x, fixed.pack_linear(weight, None)), product)
    torch.testing.assert_close(fixed.silu_mul(product), fast.silu_mul(product))


def test_merged_parts_equal_the_whole_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 30, generator=generator) * 4
    values = torch.randn(30, 8, generator=generator)
    cuts = [slice(0, 10), slice(10, 11), slice(11, 30)]
    parts = [torch.softmax(scores[:, cut], -1) @ values[cut] for cut in cuts]
    weights = [torch.logsumexp(scores[:, cut], -1) for cut in cuts]
    torch.testing.assert_close(merge(parts, weights), torch.softmax(scores, -1) @ values)


def test_a_part_that_sees_nothing_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(4, 8, generator=generator) for _ in range(2)]
    weights = [torch.randn(4, generator=generator) for _ in range(2)]
    nothing = torch.full((4,), -torch.inf)
    merged = merge([values[0], torch.zeros(4, 8), values[1]], [weights[0], nothing, weights[1]])
    assert torch.equal(merged, merge(values, weights))
    assert torch.equal(merge([values[0], torch.zeros(4, 8)], [weights[0], nothing]), values[0])
