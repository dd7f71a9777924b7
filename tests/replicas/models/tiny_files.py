"""Tiny models on disk, as safetensors and as GGUF, made without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from replicas.models.safetensors_writer import PlannedTensor, write_safetensors

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 16, 4, 2, 4, 24, 2
WORDS = ["<s>", "</s>", "<|im_end|>", "a", "b", "ab", "Ġ"]
VOCAB = len(WORDS)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "max_position_embeddings": 64,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB,
}

Weights = dict[str, NDArray[np.float32]]


def weights(*, seed: int = 0, qk_norm: bool = False, qkv_bias: bool = False) -> Weights:
    """Random float32 weights under their Hugging Face names, each exact in bfloat16."""
    chooser = np.random.default_rng(seed)

    def random(*shape: int) -> NDArray[np.float32]:
        return chooser.integers(-64, 64, size=shape).astype(np.float32) / 64

    found: Weights = {"model.embed_tokens.weight": random(VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = random(HIDDEN)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{at}self_attn.{name}_proj.weight"] = random(heads * HEAD_DIM, HIDDEN)
            if qkv_bias:
                found[f"{at}self_attn.{name}_proj.bias"] = random(heads * HEAD_DIM)
        if qk_norm:
            found[at + "self_attn.q_norm.weight"] = random(HEAD_DIM)
            found[at + "self_attn.k_norm.weight"] = random(HEAD_DIM)
        found[at + "self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD_DIM)
        found[at + "post_attention_layernorm.weight"] = random(HIDDEN)
        found[at + "mlp.gate_proj.weight"] = random(FFN, HIDDEN)
        found[at + "mlp.up_proj.weight"] = random(FFN, HIDDEN)
        found[at + "mlp.down_proj.weight"] = random(HIDDEN, FFN)
    found["model.norm.weight"] = random(HIDDEN)
    return found


def planned(values: Weights, *, dtype: Any = "BF16") -> list[PlannedTensor]:
    """The same, ready for the writer."""
    return [
        PlannedTensor(name, dtype, value.shape, lambda value=value: value)
        for name, value in values.items()
    ]


def write_model(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    shard_bytes: int = 10**9,
    seed: int = 0,
) -> Path:
    """A safetensors model in `folder` as someone would have downloaded it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(config or {})))
    tokens = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens | dict(tokenizer_config or {})))
    tokenizer().save(str(folder / "tokenizer.json"))
    write_safetensors(
        folder, planned(weights(seed=seed)), on_bytes=unwatched, shard_bytes=shard_bytes
    )
    return folder


def tokenizer() -> Tokenizer:
    """Byte-level, of seven tokens."""
    vocabulary = {word: token_id for token_id, word in enumerate(WORDS)}
    tiny = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    tiny.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tiny.decoder = decoders.ByteLevel()
    tiny.add_special_tokens(WORDS[:3])
    return tiny


def unwatched(_num_bytes: int) -> None:
    """A progress that nobody watches."""


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The llama.cpp name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inside = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[inside]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def as_llama_cpp_orders(name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Query and key rows with the two halves of each head interleaved, one row at a time."""
    heads = HEADS if ".q_proj." in name else KV_HEADS if ".k_proj." in name else 0
    out = value.copy()
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            first = head * HEAD_DIM
            out[first + 2 * i] = value[first + i]
            out[first + 2 * i + 1] = value[first + HEAD_DIM // 2 + i]
    return out


def write_gguf(
    path: Path,
    values: Weights,
    *,
    family: str = "llama",
    quantise: bool = True,
    extra: Mapping[str, Any] | None = None,
    pre_tokenizer: str = "gpt-2",
    rope_factors: NDArray[np.float32] | None = None,
) -> Path:
    """A GGUF file as llama.cpp's converter would have written it; matrices in F16 if `quantise`."""
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages[0].content }}<|im_end|>")
    for key, value in (extra or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, value in values.items():
        ordered = as_llama_cpp_orders(name, value) if family == "llama" else value
        is_matrix = ordered.ndim == 2 and quantise
        writer.add_tensor(gguf_name(name), ordered.astype(np.float16) if is_matrix else ordered)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
