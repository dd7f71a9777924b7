"""Gives the tensors of a GGUF file the names and the order of rows that Hugging Face uses."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from numpy.typing import NDArray

from replicas.models.safetensors_writer import PlannedTensor, StoredDtype
from replicas.models.supported import UnsupportedModel

_OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NOT_WEIGHTS = ("rope_freqs.weight",)


def plan_tensors(
    readers: list[GGUFReader], config: Mapping[str, Any], *, name: str
) -> list[PlannedTensor]:
    """What to write for the model in `readers` (one per split file), in the files' order.

    config: the Hugging Face config made from the same file. Matrices kept in float32 make the
    whole model float32; anything else becomes bfloat16. A tied lm_head is left out.
    """
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    dtype: StoredDtype = "F32" if _is_float32(tensors) else "BF16"
    planned = []
    for tensor in tensors:
        if tensor.name in _NOT_WEIGHTS:
            continue
        target = hugging_face_name(tensor.name, model_name=name)
        if target == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        planned.append(_plan(tensor, target, dtype=dtype, config=config))
    return planned


def hugging_face_name(gguf_name: str, *, model_name: str) -> str:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`, or UnsupportedModel."""
    inside = _LAYER_TENSOR.fullmatch(gguf_name)
    if inside and inside[2] in _IN_LAYER:
        return f"model.layers.{inside[1]}.{_IN_LAYER[inside[2]]}.{inside[3]}"
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _OUTSIDE_LAYERS and kind in ("weight", "bias"):
        return f"{_OUTSIDE_LAYERS[stem]}.{kind}"
    raise UnsupportedModel(f"model {model_name}: tensor {gguf_name} has no place in the decoder")


def interleaved_to_halves(rows: NDArray[np.float32], *, num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of query and key rows.

    llama.cpp rotates neighbouring rows of a head (0 with 1, 2 with 3), Hugging Face row i with
    row i + head_dim / 2; so the even rows of each head come first here, then the odd ones.
    """
    half_dim = rows.shape[0] // num_heads // 2
    split = rows.reshape(num_heads, half_dim, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _is_float32(tensors: list[ReaderTensor]) -> bool:
    return all(tensor.tensor_type.name == "F32" for tensor in tensors)


def _plan(
    tensor: ReaderTensor, target: str, *, dtype: StoredDtype, config: Mapping[str, Any]
) -> PlannedTensor:
    # GGUF lists extents from the fastest to the slowest, the reverse of everyone else.
    shape = tuple(int(extent) for extent in reversed(tensor.shape.tolist()))
    num_heads = _interleaved_heads(target, config)

    def compute() -> NDArray[np.float32]:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        values = values.reshape(shape)
        return interleaved_to_halves(values, num_heads=num_heads) if num_heads else values

    return PlannedTensor(target, dtype, shape, compute)


def _interleaved_heads(target: str, config: Mapping[str, Any]) -> int:
    """Heads whose rows are interleaved in the file; 0 if the rows are in order."""
    if config["model_type"] != "llama":
        return 0
    if ".q_proj." in target:
        return int(config["num_attention_heads"])
    if ".k_proj." in target:
        return int(config["num_key_value_heads"])
    return 0
