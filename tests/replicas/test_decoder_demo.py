"""The demo model gives transformers' own logits, and the same bits however it is batched."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import transformers

from replicas.config import EngineConfig, SchedulerConfig
from replicas.model_runner import ModelRunner
from replicas.models.demo_model import find_demo_gguf
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelUnavailable
from tests.replicas.tiny_models import batch_of, paged_requests, random_prompts

pytestmark = pytest.mark.slow

BLOCK_SIZE = 16
NUM_BLOCKS = 128
TEXT = "What is the capital of France? Name three of its rivers, and say how long each one is."


def demo_gguf() -> Path:
    try:
        return find_demo_gguf()
    except ModelUnavailable as error:
        pytest.skip(f"the wheel with the demo model is not installed: {error}")


@cache
def prepared_demo() -> PreparedModel:
    demo_gguf()
    return prepare_model("demo", cache_dir=Path(mkdtemp(prefix="demo-")), progress=False)


def runner(**settings: Any) -> ModelRunner:
    model = prepared_demo()
    scheduler = SchedulerConfig(block_size=BLOCK_SIZE, max_model_len=1024)
    config = EngineConfig(
        model=model.folder,
        scheduler=scheduler,
        num_blocks_override=NUM_BLOCKS,
        num_threads=2,
        **settings,
    )
    return ModelRunner(model, config)


@pytest.mark.filterwarnings("ignore")
def test_float32_logits_equal_transformers() -> None:
    gguf = demo_gguf()
    own = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        # The prepared folder holds the weights in bfloat16.
        for parameter in own.parameters():
            parameter.copy_(parameter.bfloat16())
    tokenizer = transformers.AutoTokenizer.from_pretrained(prepared_demo().folder)
    prompts = [tokenizer(TEXT).input_ids, *random_prompts([70, 1, 33], vocab=49_000)]
    requests = paged_requests(prompts, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    ours = runner(dtype="float32")
    halves = [each.part(0, max(1, len(each.token_ids) // 2)) for each in requests]
    ours.logits(batch_of(halves, block_size=BLOCK_SIZE))
    rest = [
        each.part(part.end, len(each.token_ids))
        for each, part in zip(requests, halves, strict=True)
    ]
    rest = [part for part in rest if part.start < part.end]
    logits = ours.logits(batch_of(rest, block_size=BLOCK_SIZE))
    for row, part in enumerate(rest):
        with torch.inference_mode():
            expected = own(torch.tensor([part.request.token_ids])).logits[0, -1]
        torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_batching_and_chunking_change_no_bit_in_deterministic_mode(dtype: str) -> None:
    ours = runner(dtype=dtype, deterministic=True)
    prompts = random_prompts([300, 1, 40, 257, 9], vocab=49_000)
    alone = []
    for seed, prompt in enumerate(prompts):
        (request,) = paged_requests(
            [prompt], seed=seed, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS
        )
        alone.append(ours.logits(batch_of([request.whole()], block_size=BLOCK_SIZE))[0])
    requests = paged_requests(prompts, seed=9, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    first = [each.part(0, len(each.token_ids) // 3) for each in requests]
    first = [part for part in first if part.end]
    ours.logits(batch_of(first, block_size=BLOCK_SIZE))
    rest = [each.part(len(each.token_ids) // 3, len(each.token_ids)) for each in requests]
    logits = ours.logits(batch_of(rest, block_size=BLOCK_SIZE))
    for row, expected in enumerate(alone):
        assert torch.equal(logits[row], expected)
