"""Perplexity is that of an ordinary forward pass, and a smaller cache costs little of it."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from replicas.bench.perplexity import (
    CACHES,
    WEIGHTS,
    Precision,
    Quality,
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
    (ours,) = measure_quality(model.prepared, config, [passage], [Precision()])
    logits = model.own_logits(passage)[:-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(passage[1:]))
    assert ours.loss == pytest.approx(expected.item(), abs=1e-4)
    assert ours.num_tokens == 199


def test_the_table_compares_with_its_first_row() -> None:
    exact = Quality(Precision(), 1.0, (5, 6, 7, 8), 2048)
    other = Quality(Precision("int8", "fp8"), 1.01, (5, 6, 7, 9), 1024)
    table = quality_table([exact, other]).splitlines()
    assert "KV cache (4 tokens)" in table[0]
    assert table[3] == "| int8 | fp8 | 2.7456 | +1.005 % | 75.00 % | 1.0 | 0.500 |"


@pytest.mark.slow
def test_a_smaller_cache_costs_little_perplexity() -> None:
    model = demo()
    passages = [passage[:512] for passage in python_manual(model, 2)]
    exact, *others = measure_quality(model, settings_for(model), passages, CACHES)
    # A model that predicts nothing would not notice any loss.
    assert exact.perplexity < 40
    for each in others:
        change = 100 * (each.perplexity / exact.perplexity - 1)
        assert abs(change) < BOUNDS[each.precision.kv_cache_dtype], each
    shares = {
        each.precision.kv_cache_dtype: each.block_bytes / exact.block_bytes for each in others
    }
    assert shares == {"bf16": 1.0, "int8": 0.53125, "fp8": 0.53125}


@pytest.mark.slow
def test_int8_weights_cost_little_perplexity() -> None:
    model = demo()
    passages = [passage[:512] for passage in python_manual(model, 2)]
    exact, coded = measure_quality(model, settings_for(model), passages, WEIGHTS[:2])
    assert abs(coded.perplexity / exact.perplexity - 1) < 0.04
    assert coded.agreement(exact) > 0.93
