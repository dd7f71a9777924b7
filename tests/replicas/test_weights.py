"""Checkpoints load whole or sharded, tied or not, and a wrong tensor is named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from replicas.kernels.reference.backend import ReferenceKernels
from replicas.models.model_config import ModelConfig
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.supported import ModelUnavailable
from replicas.models.weights import Checkpoint, DecoderWeights, choose_dtype, load_weights
from tests.replicas.tiny_models import batch_of, paged_requests, random_prompts, save_tiny

WEIGHTS = "model.safetensors"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    config = ModelConfig.load(folder, name="tiny")
    checkpoint = Checkpoint(folder, name="tiny")
    return load_weights(
        config, checkpoint, ReferenceKernels(dtype), dtype, StartUpProgress(is_shown=False)
    )


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / WEIGHTS)
    for key, tensor in changes.items():
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    save_file(tensors, folder / WEIGHTS)


def test_a_sharded_checkpoint_gives_the_logits_of_a_single_file(tmp_path: Path) -> None:
    whole = save_tiny(tmp_path / "whole", "qwen2")
    sharded = save_tiny(tmp_path / "sharded", "qwen2")
    sharded.own.save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    (tmp_path / "sharded" / WEIGHTS).unlink(missing_ok=True)
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    requests = paged_requests(random_prompts([20]))
    batch = batch_of([requests[0].whole()])
    assert torch.equal(sharded.runner().logits(batch), whole.runner().logits(batch))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    rewrite(tmp_path, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ModelUnavailable, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path)


def test_a_tensor_that_nothing_uses_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    rewrite(tmp_path, **{"model.layers.0.self_attn.sinks": torch.zeros(6)})
    with pytest.raises(ModelUnavailable, match=r"unexpected.*model\.layers\.0\.self_attn\.sinks"):
        load(tmp_path)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    rewrite(tmp_path, **{"model.norm.weight": torch.zeros(47)})
    with pytest.raises(ModelUnavailable, match=r"model\.norm\.weight.*\[47\].*\[48\]"):
        load(tmp_path)


def test_a_tied_model_may_carry_its_head_and_old_angles_along(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    rewrite(
        tmp_path,
        **{
            "lm_head.weight": torch.zeros(211, 48),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        },
    )
    assert load(tmp_path).embedding.shape == (211, 48)


@pytest.mark.parametrize(
    ("own", "asked", "chosen"),
    [
        (torch.float32, "auto", torch.float32),
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.bfloat16),
        (torch.bfloat16, "float32", torch.float32),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
    ids=str,
)
def test_the_dtype_is_the_checkpoints_unless_asked_otherwise(
    own: torch.dtype, asked: str, chosen: torch.dtype, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path, "llama")
    model.own.to(own).save_pretrained(tmp_path)
    config = ModelConfig.load(tmp_path, name="tiny")
    assert choose_dtype(asked, config, Checkpoint(tmp_path, name="tiny")) is chosen
    assert load(tmp_path, chosen).embedding.dtype is chosen
