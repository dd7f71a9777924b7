"""Turns a GGUF file's metadata into the config.json that Hugging Face would have shipped."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replicas.models.supported import UnsupportedModel

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Llama 3.1 and later keep only the finished per-frequency factors in the file; these are the
# published parameters that they were made from.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


class GgufConfig:
    """Reads one GGUF's metadata (`fields`, key to value) as the config of a supported family.

    num_tokens: length of the vocabulary. tensor_names: every tensor in the file.
    rope_factors: values of `rope_freqs.weight` [head_dim / 2], if the file has it.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        name: str,
        tensor_names: frozenset[str],
        rope_factors: NDArray[np.float32] | None = None,
    ) -> None:
        self._fields = fields
        self._name = name
        self._tensor_names = tensor_names
        self._rope_factors = rope_factors
        self._family = str(fields["general.architecture"])

    def config(self) -> dict[str, Any]:
        """The Hugging Face config; UnsupportedModel, by name, for what no decoder here can run."""
        if self._family not in _ARCHITECTURES:
            raise UnsupportedModel(
                f"model {self._name}: GGUF architecture {self._family} is not supported; "
                f"expected one of {', '.join(_ARCHITECTURES)}"
            )
        if self._value("expert_count", 0):
            raise UnsupportedModel(
                f"model {self._name}: GGUF mixture-of-experts models are not supported"
            )
        rope = self._rope()
        biased = "blk.0.attn_q.bias" in self._tensor_names
        return {
            "architectures": [_ARCHITECTURES[self._family]],
            "model_type": self._family,
            "attention_bias": biased and self._family != "qwen2",
            "bos_token_id": self._token_id("bos"),
            "eos_token_id": self._token_id("eos"),
            "pad_token_id": self._token_id("padding"),
            "dtype": "bfloat16",
            "head_dim": self._head_dim(),
            "hidden_act": "silu",
            "hidden_size": self._value("embedding_length"),
            "initializer_range": 0.02,
            "intermediate_size": self._value("feed_forward_length"),
            "max_position_embeddings": self._value("context_length"),
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensor_names,
            "num_attention_heads": self._value("attention.head_count"),
            "num_hidden_layers": self._value("block_count"),
            "num_key_value_heads": self._num_kv_heads(),
            "rms_norm_eps": _shortest_float(self._value("attention.layer_norm_rms_epsilon")),
            "rope_theta": rope["rope_theta"],
            "rope_parameters": rope,
            "rope_scaling": None if rope["rope_type"] == "default" else _without_theta(rope),
            "tie_word_embeddings": "output.weight" not in self._tensor_names,
            "use_cache": True,
            "vocab_size": len(self._fields["tokenizer.ggml.tokens"]),
        }

    def _value(self, key: str, default: Any = None) -> Any:
        full_key = f"{self._family}.{key}"
        if full_key not in self._fields and default is None:
            raise UnsupportedModel(f"model {self._name}: the GGUF file lacks {full_key}")
        return self._fields.get(full_key, default)

    def _token_id(self, role: str) -> int | None:
        token_id = self._fields.get(f"tokenizer.ggml.{role}_token_id")
        return None if token_id is None else int(token_id)

    def _num_kv_heads(self) -> int:
        return int(self._value("attention.head_count_kv", self._value("attention.head_count")))

    def _head_dim(self) -> int:
        evenly = self._value("embedding_length") // self._value("attention.head_count")
        head_dim = int(self._value("attention.key_length", evenly))
        rotated_dim = int(self._value("rope.dimension_count", head_dim))
        if rotated_dim != head_dim:
            raise UnsupportedModel(
                f"model {self._name}: partial rotary embedding ({rotated_dim} of {head_dim}) "
                "is not supported"
            )
        return head_dim

    def _rope(self) -> dict[str, Any]:
        theta = _shortest_float(self._value("rope.freq_base", 10000.0))
        rope: dict[str, Any] = {"rope_theta": theta, "rope_type": "default"}
        if self._rope_factors is not None:
            return rope | self._llama3_scaling(theta)
        kind = str(self._value("rope.scaling.type", "none"))
        if kind == "none":
            return rope
        if kind not in ("linear", "yarn"):
            raise UnsupportedModel(f"model {self._name}: rope scaling {kind} is not supported")
        rope |= {"rope_type": kind, "factor": _shortest_float(self._value("rope.scaling.factor"))}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = int(
                self._value("rope.scaling.original_context_length")
            )
        return rope

    def _llama3_scaling(self, theta: float) -> dict[str, Any]:
        assert self._rope_factors is not None
        factor = _shortest_float(self._rope_factors.max())
        expected = llama3_rope_factors(theta=theta, factor=factor, head_dim=self._head_dim())
        if not np.allclose(self._rope_factors, expected, rtol=1e-4):
            raise UnsupportedModel(
                f"model {self._name}: the rope factors in the file are not Llama 3's; "
                "use the model's safetensors instead"
            )
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": _LLAMA3_LOW,
            "high_freq_factor": _LLAMA3_HIGH,
            "original_max_position_embeddings": _LLAMA3_CONTEXT,
        }


def llama3_rope_factors(*, theta: float, factor: float, head_dim: int) -> NDArray[np.float32]:
    """What Llama 3.1 divides each frequency by, [head_dim / 2]: from 1 to `factor`."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = _LLAMA3_CONTEXT / wavelengths
    smooth = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def _without_theta(rope: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rope.items() if key != "rope_theta"}


def _shortest_float(value: Any) -> float:
    """GGUF keeps float32; 1e-5 must not come back as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
