"""A cache of another type gives back what was stored, within its error, in every batch alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block_compression import encode_e4m3
from replicas.kernels.interface import LayerCache
from replicas.kernels.reference.cache_access import quantise, read, store
from replicas.kernels.reference.scratch import Scratch
from tests.replicas.tiny_models import (
    TinyModel,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)

FP8 = torch.float8_e4m3fn
NUM_BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM = 5, 4, 2, 8
CACHE_DTYPES = ["auto", "bf16", "int8", "fp8"]
# Furthest that logits may lie from those of a float32 cache, as a share of their norm.
LOGIT_ERROR = {"auto": 0.0, "bf16": 0.02, "int8": 0.03, "fp8": 0.15}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"), "llama")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def cache_of(dtype: torch.dtype) -> LayerCache:
    shape = (NUM_BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM)
    halves = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
    if dtype in (torch.int8, FP8):
        return LayerCache(*halves, *(torch.zeros(shape[:-1]) for _ in range(2)))
    return LayerCache(*halves)


def dequantised(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.float() * scales[..., None]


@given(
    rows=st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4), min_size=1, max_size=6
    )
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_numbers_come_back_within_half_a_step(rows: list[list[float]]) -> None:
    own = torch.tensor(rows)
    largest = own.abs().amax(-1, keepdim=True)
    # Beside half a step, rounding of the quotient and of the product.
    slack = largest * 1e-6 + 1e-37
    error = (dequantised(*quantise(own, torch.int8)) - own).abs()
    assert (error <= largest * (0.5 / 127) + slack).all()
    error = (dequantised(*quantise(own, FP8)) - own).abs()
    # Three bits after the point; below 2**-6 of a code steps of 2**-9.
    assert (error <= own.abs() * 2.0**-4 + largest / 448 * 2.0**-10 + slack).all()


def test_fp8_codes_are_those_of_the_stores_own_encoder() -> None:
    own = numbers(40, 64)
    codes, scales = quantise(own, FP8)
    expected = encode_e4m3((own / scales[:, None]).numpy())
    assert np.array_equal(codes.view(torch.uint8).numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=str)
def test_zeros_stay_zeros_and_what_is_not_finite_becomes_finite(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0.0, 0.0], [float("inf"), 1.0], [float("nan"), -2.0]])
    back = dequantised(*quantise(rows, dtype))
    assert back[0].tolist() == [0.0, 0.0]
    assert back.isfinite().all()
    assert back[2].tolist() == [0.0, -2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, FP8], ids=str)
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16], ids=str)
def test_any_rows_are_read_as_they_were_stored(dtype: torch.dtype, wanted: torch.dtype) -> None:
    cache = cache_of(dtype)
    slots = torch.tensor([3, 17, 8, 9])
    keys, values = numbers(4, HEADS, HEAD_DIM).to(wanted), numbers(4, HEADS, HEAD_DIM, seed=1)
    store(cache, slots, keys, values.to(wanted))
    scratch = Scratch()
    by_token = read(cache, slots, (HEADS, HEAD_DIM), scratch=scratch, dtype=wanted)[0].clone()
    assert by_token.dtype is wanted
    torch.testing.assert_close(by_token.float(), keys.float(), rtol=2.0**-4, atol=0.05)
    by_head = read(cache, slots * HEADS + 1, (HEAD_DIM,), scratch=scratch, dtype=wanted)[0]
    assert torch.equal(by_head, by_token[:, 1])
    whole = (BLOCK_SIZE, HEADS, HEAD_DIM)
    by_block = read(cache, torch.tensor([2, 4]), whole, scratch=scratch, dtype=wanted)[1]
    torch.testing.assert_close(by_block[0, :2].float(), values[2:].float(), rtol=0.07, atol=0.05)
    assert not by_block[0, 2:].any()


def last_logits(
    model: TinyModel, prompts: Sequence[Sequence[int]], cuts: Sequence[int], **runner: Any
) -> torch.Tensor:
    """Of the last token of each prompt, computed up to each cut and then to the end."""
    own = model.runner(**runner)
    requests = paged_requests(prompts)
    start = 0
    for end in cuts:
        own.logits(batch_of([each.part(start, end) for each in requests]))
        start = end
    return own.logits(batch_of([each.part(start, len(each.token_ids)) for each in requests]))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("asked", CACHE_DTYPES)
def test_logits_stay_near_those_of_an_exact_cache(
    model: TinyModel, asked: str, deterministic: bool
) -> None:
    prompts = random_prompts([30, 41, 33], seed=4)
    settings = {"kernels": "reference", "deterministic": deterministic}
    exact = last_logits(model, prompts, [20], **settings)
    ours = last_logits(model, prompts, [20], kv_cache_dtype=asked, **settings)
    assert (ours - exact).norm() <= LOGIT_ERROR[asked] * exact.norm()


@pytest.mark.parametrize("asked", CACHE_DTYPES)
def test_deterministic_bits_do_not_depend_on_chunks_or_neighbours(
    model: TinyModel, asked: str
) -> None:
    prompts = random_prompts([30, 41, 33], seed=4)
    settings = {"kernels": "reference", "deterministic": True, "kv_cache_dtype": asked}
    together = last_logits(model, prompts, [7, 8, 23], **settings)
    for row, prompt in enumerate(prompts):
        assert torch.equal(last_logits(model, [prompt], [], **settings)[0], together[row])


@pytest.mark.parametrize("asked", CACHE_DTYPES)
def test_the_layout_counts_the_bytes_that_memory_holds(model: TinyModel, asked: str) -> None:
    runner = model.runner(kernels="reference", kv_cache_dtype=asked)
    assert runner.layout.payload_bytes == runner.block_bytes
    numbers_each, vectors = 2 * 3 * 2 * 8 * 4, 2 * 3 * 2 * 4
    bytes_each = {"auto": 4, "bf16": 2, "int8": 1, "fp8": 1}[asked]
    scales = vectors * 4 if asked in ("int8", "fp8") else 0
    assert runner.block_bytes == numbers_each * bytes_each + scales
