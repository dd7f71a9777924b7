"""The lean decoder gives the logits that transformers gives, however the work is cut up."""

from pathlib import Path

import pytest
import torch

from tests.replicas.tiny_models import (
    FAMILIES,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)

# transformers computes beside us: seconds of import, and two models for every family.
pytestmark = pytest.mark.slow

TOLERANCE = 1e-4


@pytest.fixture(params=["reference", "cpu"])
def back_end(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_batched_with_strangers(
    family: str, back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, family)
    runner = model.runner(kernels=back_end)
    prompts = random_prompts([1, 37, 5, 64, 130, 3])
    requests = paged_requests(prompts)
    logits = runner.logits(batch_of([request.whole() for request in requests]))
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(
            logits[row], model.own_logits(prompt)[-1], atol=TOLERANCE, rtol=0
        )


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", ["llama_biased", "mistral_windowed", "qwen3_windowed"])
def test_chunked_prefill_then_decode_equals_transformers(
    family: str, deterministic: bool, back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, family)
    runner = model.runner(kernels=back_end, deterministic=deterministic)
    prompts = random_prompts([61, 45, 20, 33, 50], seed=1)
    requests = paged_requests(prompts, seed=1)
    expected = [model.own_logits(prompt) for prompt in prompts]
    ends = [[7, 29, 30, 58, 59, 60], [1, 2, 3, 40, 44], [18, 19, 20], [30, 31, 32, 33], [48, 50]]
    done = [0] * len(prompts)
    while any(ends):
        rows = [row for row in range(len(prompts)) if ends[row]]
        parts = [requests[row].part(done[row], ends[row][0]) for row in rows]
        logits = runner.logits(batch_of(parts))
        for index, row in enumerate(rows):
            done[row] = ends[row].pop(0)
            torch.testing.assert_close(
                logits[index], expected[row][done[row] - 1], atol=TOLERANCE, rtol=0
            )


def test_many_decode_rows_of_unlike_context_equal_transformers(
    back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, "llama")
    runner = model.runner(kernels=back_end)
    prompts = random_prompts([2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 4, 4, 4], seed=2)
    requests = paged_requests(prompts, seed=2)
    for request in requests:
        runner.logits(batch_of([request.part(0, len(request.token_ids) - 1)]))
    last = [
        request.part(len(request.token_ids) - 1, len(request.token_ids)) for request in requests
    ]
    logits = runner.logits(batch_of(last))
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(
            logits[row], model.own_logits(prompt)[-1], atol=TOLERANCE, rtol=0
        )


def test_a_row_may_read_blocks_that_another_row_writes_in_the_same_step(
    back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, "qwen3")
    runner = model.runner(kernels=back_end)
    prompt = random_prompts([32], seed=3)[0]
    (owner,) = paged_requests([prompt], seed=3)
    logits = runner.logits(batch_of([owner.part(0, 20), owner.part(20, 32)]))
    torch.testing.assert_close(logits[1], model.own_logits(prompt)[-1], atol=TOLERANCE, rtol=0)


def test_bfloat16_logits_are_about_as_near_to_float32_as_transformers_own(
    back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, "llama")
    prompts = random_prompts([40, 9, 130, 70, 1, 1, 1], seed=4)
    requests = paged_requests(prompts, seed=4)
    ours = model.runner(kernels=back_end, dtype="bfloat16").logits(
        batch_of([each.whole() for each in requests])
    )
    exact = torch.stack([model.own_logits(prompt)[-1] for prompt in prompts])
    model.own.bfloat16()
    theirs = torch.stack([model.own_logits(prompt)[-1] for prompt in prompts])
    assert (ours - exact).norm() < 1.3 * (theirs - exact).norm()


def test_a_step_in_which_nobody_samples_still_fills_the_cache(
    back_end: str, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, "llama")
    runner = model.runner(kernels=back_end)
    prompt = random_prompts([30], seed=5)[0]
    (request,) = paged_requests([prompt], seed=5)
    first = batch_of([request.part(0, 20)])
    silent = type(first)(
        **{
            name: () if name == "samples" else getattr(first, name)
            for name in first.__dataclass_fields__
        }
    )
    assert len(runner.run(silent, lambda: None).token_ids) == 0
    logits = runner.logits(batch_of([request.part(20, 30)]))
    torch.testing.assert_close(logits[0], model.own_logits(prompt)[-1], atol=TOLERANCE, rtol=0)
