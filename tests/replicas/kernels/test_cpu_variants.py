"""Every way through the CPU back end gives the same logits, and the same bits for any threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from replicas.kernels.cpu.ablation import OFF_VARIABLE, PARTS
from replicas.kernels.cpu.native import ISA_VARIABLE
from replicas.kernels.interface import AttentionShape
from replicas.kernels.select import KernelsUnavailable, select_kernels
from tests.replicas.kernels.back_ends import INSTRUCTION_SETS, NotHere, make
from tests.replicas.kernels.test_contract import batch, cache, noise
from tests.replicas.tiny_models import (
    TinyModel,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)

# The compiled back end may have to be built first.
pytestmark = pytest.mark.slow

FAMILIES = ["llama_biased", "mistral_windowed", "qwen3_windowed"]


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads that was set before is set again."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def logits(model: TinyModel, dtype: str) -> torch.Tensor:
    """Rows of prefill and of decode, in two steps."""
    runner = model.runner(kernels="cpu", dtype=dtype)
    requests = paged_requests(random_prompts([1, 37, 5, 64, 130, 3]))
    first = runner.logits(batch_of([each.whole() for each in requests[:3]]))
    both = [requests[3].part(0, 63), requests[4].whole(), requests[5].part(0, 2)]
    runner.logits(batch_of(both))
    last = [requests[3].part(63, 64), requests[5].part(2, 3)]
    return torch.cat((first, runner.logits(batch_of(last))))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_instruction_set_gives_the_same_logits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny(tmp_path, family)
    best = logits(model, "float32")
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(ISA_VARIABLE, name)
        try:
            select_kernels("cpu", torch.float32, deterministic=False)
        except KernelsUnavailable:
            continue
        torch.testing.assert_close(logits(model, "float32"), best, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_off_is_computed_by_plain_torch(
    family: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny(tmp_path, family)
    whole = logits(model, "float32")
    monkeypatch.setenv(OFF_VARIABLE, part)
    torch.testing.assert_close(logits(model, "float32"), whole, atol=2e-5, rtol=0)


def test_parts_cannot_be_off_where_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFF_VARIABLE, "rows")
    with pytest.raises(KernelsUnavailable, match="cannot be off in deterministic mode"):
        select_kernels("cpu", torch.float32, deterministic=True)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("contexts", [[1500], [1500, 3, 700], [90] * 40])
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_attention_has_the_same_bits_for_any_number_of_threads(
    name: str, contexts: list[int]
) -> None:
    shape = AttentionShape(6, 2, 64, 0.125)
    num_blocks = sum(-(-context // 16) for context in contexts) + 1
    rows = batch(contexts, [1] * len(contexts), 16, num_blocks)
    try:
        kernels = make(f"cpu {name}", torch.bfloat16)
    except NotHere as reason:
        pytest.skip(str(reason))
    kv = cache(shape, num_blocks, 16, torch.bfloat16)
    q = noise(len(contexts), 6, 64).bfloat16()
    results = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        plan = kernels.plan_attention(rows, shape, 16)
        results.append(kernels.attention(q, kv, shape, plan))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
