"""Reads a Hugging Face config.json into the few numbers that the lean decoder is built from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicas.models.json_file import read_json
from replicas.models.rope_config import RopeConfig
from replicas.models.supported import UnsupportedModel, supported_architecture

FULL_ATTENTION = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3; SmolLM is a Llama).

    windows: per layer, how many last positions a token sees (its own counted); FULL_ATTENTION
    sees all. qkv_bias, output_bias, mlp_bias: whether those linear layers have one. qk_norm:
    queries and keys are normed per head before rotation (Qwen3). dtype: the checkpoint's own.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    rope: RopeConfig
    dtype: str | None

    @classmethod
    def load(cls, folder: str | Path, *, name: str) -> "ModelConfig":
        """Read `folder`/config.json; UnsupportedModel names whatever this family lacks."""
        return cls.from_values(read_json(Path(folder) / "config.json"), name=name)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, name: str) -> "ModelConfig":
        """The same from the parsed JSON object."""
        architecture = supported_architecture(values, name=name)
        _refuse_what_is_not_in_the_family(values, name=name)
        num_heads = int(values["num_attention_heads"])
        head_dim = _head_dim(values, architecture, num_heads)
        num_kv_heads = int(values.get("num_key_value_heads") or num_heads)
        if num_heads % num_kv_heads:
            raise UnsupportedModel(
                f"model {name}: {num_heads} heads cannot share {num_kv_heads} key-value heads"
            )
        biased = bool(values.get("attention_bias", False))
        is_qwen2, is_mistral = architecture.startswith("Qwen2"), architecture.startswith("Mistral")
        return cls(
            architecture=architecture,
            vocab_size=int(values["vocab_size"]),
            hidden_size=int(values["hidden_size"]),
            intermediate_size=int(values["intermediate_size"]),
            num_layers=int(values["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=int(values["max_position_embeddings"]),
            tied_embeddings=bool(values.get("tie_word_embeddings", False)),
            qkv_bias=is_qwen2 or (biased and not is_mistral),
            output_bias=biased and not (is_qwen2 or is_mistral),
            mlp_bias=architecture == "LlamaForCausalLM" and bool(values.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
            windows=_windows(values, architecture, name=name),
            rope=RopeConfig.from_values(values, head_dim=head_dim, name=name),
            dtype=values.get("dtype") or values.get("torch_dtype"),
        )


def _head_dim(values: Mapping[str, Any], architecture: str, num_heads: int) -> int:
    stated = values.get("head_dim")
    if stated:
        return int(stated)
    # Qwen3 does not derive it: a config that leaves it out means 128.
    if architecture == "Qwen3ForCausalLM":
        return 128
    return int(values["hidden_size"]) // num_heads


def _windows(values: Mapping[str, Any], architecture: str, *, name: str) -> tuple[int, ...]:
    num_layers = int(values["num_hidden_layers"])
    window = values.get("sliding_window")
    is_qwen = architecture.startswith("Qwen")
    if architecture == "LlamaForCausalLM" or window is None:
        return (FULL_ATTENTION,) * num_layers
    if is_qwen and not values.get("use_sliding_window", False):
        return (FULL_ATTENTION,) * num_layers
    kinds = values.get("layer_types") if is_qwen else None
    if kinds is None:
        first = int(values.get("max_window_layers", 28)) if is_qwen else 0
        return tuple(
            int(window) if layer >= first else FULL_ATTENTION for layer in range(num_layers)
        )
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != num_layers:
        raise UnsupportedModel(
            f"model {name}: layer_types {unknown or len(kinds)} cannot be run; expected "
            f"{num_layers} of full_attention or sliding_attention"
        )
    return tuple(int(window) if kind == "sliding_attention" else FULL_ATTENTION for kind in kinds)


def _refuse_what_is_not_in_the_family(values: Mapping[str, Any], *, name: str) -> None:
    refused = {
        "ALiBi positions": values.get("alibi") or values.get("position_embedding_type") == "alibi",
        "multi-head latent attention (kv_lora_rank)": values.get("kv_lora_rank"),
        "state-space layers": values.get("ssm_cfg") or values.get("mamba_d_state"),
        "encoder-decoder models": values.get("is_encoder_decoder"),
        "mixture-of-experts layers": values.get("num_experts") or values.get("num_local_experts"),
        "layers without rotary positions": values.get("no_rope_layers"),
    }
    for what, present in refused.items():
        if present:
            raise UnsupportedModel(f"model {name}: {what}: not supported")
    activation = values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"model {name}: hidden_act={activation}: expected silu")
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads", "max_position_embeddings"):  # fmt: skip
        if key not in values:
            raise UnsupportedModel(f"model {name}: config.json has no {key}")
