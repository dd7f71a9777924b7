"""Perplexity is that of an ordinary forward pass, and a smaller cache costs little of it."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from replicas.bench.perplexity import (
    CacheQuality,
    measure_quality,
    python_manual,
    quality_table,
)
from replicas.config import EngineConfig, SchedulerConfig
from replicas.models.demo_model import find_demo_gguf
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelUnavailable
from tests.replicas.tiny_models import random_prompts, save_tiny

# Largest change of perplexity, in percent, on the passages of the manual; measured at most +0.3 and
# +1.3 for the last two.
BOUNDS = {"bf16": 0.1, "int8": 1.0, "fp8": 3.0}


def settings_for(model: PreparedModel, **settings: object) -> EngineConfig:
    return EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(max_model_len=1024),
        num_blocks_override=70,
        num_threads=2,
        **settings,  # type: ignore[arg-type]
    )


@cache
def demo() -> PreparedModel:
    try:
        find_demo_gguf()
    except ModelUnavailable as error:
        pytest.skip(f"the wheel with the demo model is not installed: {error}")
    return prepare_model("demo", cache_dir=Path(mkdtemp(prefix="demo-")), progress=False)


def test_the_loss_is_that_of_one_forward_pass(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama")
    (passage,) = random_prompts([200], seed=8)
    config = settings_for(model.prepared, dtype="float32")
    (ours,) = measure_quality(model.prepared, config, [passage], ["auto"])
    logits = model.own_logits(passage)[:-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(passage[1:]))
    assert ours.loss == pytest.approx(expected.item(), abs=1e-4)
    assert ours.num_tokens == 199


def test_the_table_compares_with_its_first_row() -> None:
    rows = [CacheQuality("auto", 1.0, 10, 2048), CacheQuality("int8", 1.01, 10, 1024)]
    table = quality_table(rows).splitlines()
    assert table[0] == "| KV cache (10 tokens) | perplexity | change | block KiB | share |"
    assert table[3] == "| int8 | 2.7456 | +1.005 % | 1.0 | 0.500 |"


@pytest.mark.slow
def test_a_smaller_cache_costs_little_perplexity() -> None:
    model = demo()
    passages = [passage[:512] for passage in python_manual(model, 2)]
    exact, *others = measure_quality(model, settings_for(model), passages)
    # A model that predicts nothing would not notice any loss.
    assert exact.perplexity < 40
    for each in others:
        change = 100 * (each.perplexity / exact.perplexity - 1)
        assert abs(change) < BOUNDS[each.kv_cache_dtype], each
    shares = {each.kv_cache_dtype: each.block_bytes / exact.block_bytes for each in others}
    assert shares == {"bf16": 1.0, "int8": 0.53125, "fp8": 0.53125}
