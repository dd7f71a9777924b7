"""A config.json becomes the decoder's numbers, and what the family lacks is refused by name."""

from typing import Any

import pytest
import torch

from replicas.models.model_config import ModelConfig
from replicas.models.rotary import RotaryTable
from replicas.models.supported import UnsupportedModel

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_values({**BASE, **changes}, name="m")


def test_what_a_config_leaves_out_is_derived() -> None:
    config = read()
    assert (config.head_dim, config.num_kv_heads) == (16, 4)
    assert (config.rope.kind, config.rope.theta) == ("default", 10_000.0)
    assert config.windows == (0, 0, 0, 0)


def test_old_and_new_spellings_of_rope_mean_the_same() -> None:
    old = read(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = read(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert (old.rope.kind, old.rope.theta, old.rope.numbers["factor"]) == ("linear", 5e5, 2.0)
    assert new.rope.theta == old.rope.theta
    assert new.rope.numbers == old.rope.numbers


def test_each_family_has_its_own_biases_and_norms() -> None:
    qwen2 = read(architectures=["Qwen2ForCausalLM"], num_key_value_heads=2)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(architectures=["Qwen3ForCausalLM"], attention_bias=True)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (True, True, True)
    assert qwen3.head_dim == 128
    mistral = read(architectures=["MistralForCausalLM"], sliding_window=None)
    assert (mistral.qkv_bias, mistral.output_bias, mistral.mlp_bias) == (False, False, False)


def test_windows_stand_on_the_layers_that_have_them() -> None:
    assert read(architectures=["MistralForCausalLM"], sliding_window=8).windows == (8, 8, 8, 8)
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}
    assert read(**qwen).windows == (0, 0, 0, 0)
    late = read(**qwen, use_sliding_window=True, max_window_layers=3)
    assert late.windows == (0, 0, 0, 8)
    kinds = ["sliding_attention", "full_attention"] * 2
    assert read(**qwen, use_sliding_window=True, layer_types=kinds).windows == (8, 0, 8, 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"alibi": True}, "ALiBi"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "linear"}}, "without factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "multimodal"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ],
    ids=str,
)
def test_what_is_not_in_the_family_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(**changes)


def test_a_missing_number_is_named() -> None:
    values = {key: value for key, value in BASE.items() if key != "intermediate_size"}
    with pytest.raises(UnsupportedModel, match="intermediate_size"):
        ModelConfig.from_values(values, name="m")


def test_dynamic_rope_is_refused_beyond_the_positions_where_it_is_exact() -> None:
    rope = read(rope_scaling={"type": "dynamic", "factor": 2.0}).rope

    def table(max_model_len: int) -> RotaryTable:
        return RotaryTable(
            rope,
            max_model_len=max_model_len,
            dtype=torch.float32,
            device=torch.device("cpu"),
            name="m",
        )

    table(512)
    with pytest.raises(UnsupportedModel, match="dynamic is exact only up to 512"):
        table(513)
