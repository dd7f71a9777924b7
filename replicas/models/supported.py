"""Tells from config.json alone whether the house can run a model, before anything big is read."""

from collections.abc import Mapping
from typing import Any

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)


class ModelError(ValueError):
    """A model cannot be made ready; the message says which one and why."""


class UnsupportedModel(ModelError):
    """The model is of a kind that no decoder of this house can run."""


class ModelUnavailable(ModelError):
    """The model's files cannot be found, fetched, or are not whole."""


def supported_architecture(config: Mapping[str, Any], *, name: str) -> str:
    """The architecture that will run `config` (a Hugging Face config.json).

    Raises UnsupportedModel, naming the architecture or the quantisation, if none can.
    """
    named = config.get("architectures") or ["no architecture"]
    for architecture in named:
        if architecture in SUPPORTED_ARCHITECTURES:
            _refuse_quantised(config, name=name)
            return str(architecture)
    raise UnsupportedModel(
        f"model {name}: {', '.join(map(str, named))} is not supported; "
        f"expected one of {', '.join(SUPPORTED_ARCHITECTURES)}"
    )


def _refuse_quantised(config: Mapping[str, Any], *, name: str) -> None:
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unnamed")
        raise UnsupportedModel(
            f"model {name}: weights quantised with {method} are not supported; "
            "expected bfloat16, float16 or float32 safetensors, or a GGUF file"
        )
