"""A GGUF model becomes the safetensors, config and tokenizer that it was once made from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from replicas.models.gguf_config import GgufConfig, llama3_rope_factors
from replicas.models.gguf_tokenizer import adds_bos, build_tokenizer
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelUnavailable, UnsupportedModel
from tests.replicas.models import tiny_files as tiny


def prepared(gguf: Path, tmp_path: Path) -> PreparedModel:
    return prepare_model(str(gguf), cache_dir=tmp_path / "cache", progress=False)


def config_of(model: PreparedModel) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(model.folder) / "config.json").read_text())
    return config


@pytest.mark.parametrize(
    ("family", "options"),
    [("llama", {}), ("qwen2", {"qkv_bias": True}), ("qwen3", {"qk_norm": True})],
)
def test_weights_come_back_as_they_went_in(
    tmp_path: Path, family: str, options: dict[str, bool]
) -> None:
    original = tiny.weights(**options)
    path = tiny.write_gguf(tmp_path / "m.gguf", original, family=family, quantise=False)
    found = load_file(Path(prepared(path, tmp_path).weights_dir) / "model.safetensors")
    assert set(found) == set(original)
    for name, value in original.items():
        assert np.array_equal(found[name], value), name


def test_quantised_weights_become_bfloat16(tmp_path: Path) -> None:
    original = tiny.weights()
    model = prepared(tiny.write_gguf(tmp_path / "m.gguf", original), tmp_path)
    from safetensors import safe_open

    with safe_open(Path(model.weights_dir) / "model.safetensors", framework="pt") as file:
        for name, value in original.items():
            assert str(file.get_slice(name).get_dtype()) == "BF16"
            assert np.array_equal(file.get_tensor(name).float().numpy(), value)


def test_an_untied_head_is_kept_and_a_tied_one_is_not_written(tmp_path: Path) -> None:
    tied = tiny.weights()
    untied = tied | {"lm_head.weight": tied["model.embed_tokens.weight"] * 2}
    model = prepared(tiny.write_gguf(tmp_path / "untied.gguf", untied, quantise=False), tmp_path)
    assert config_of(model)["tie_word_embeddings"] is False
    assert "lm_head.weight" in load_file(Path(model.folder) / "model.safetensors")
    model = prepared(tiny.write_gguf(tmp_path / "tied.gguf", tied, quantise=False), tmp_path)
    assert config_of(model)["tie_word_embeddings"] is True
    assert "lm_head.weight" not in load_file(Path(model.folder) / "model.safetensors")


def test_the_description_names_ends_and_length(tmp_path: Path) -> None:
    model = prepared(tiny.write_gguf(tmp_path / "m.gguf", tiny.weights()), tmp_path)
    assert model.architecture == "LlamaForCausalLM"
    assert model.eos_token_ids == (1, 2)
    assert model.bos_token_id == 0
    assert model.add_bos is False
    assert model.max_model_len == 64
    assert model.special_tokens["eos_token"] == "</s>"
    assert (Path(model.folder) / "chat_template.jinja").read_text().endswith("<|im_end|>")


def test_llama3_rope_factors_are_recognised() -> None:
    fields = {
        "general.architecture": "llama",
        "llama.context_length": 131072,
        "llama.embedding_length": 4096,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 32,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.tokens": ["a"],
    }
    factors = llama3_rope_factors(theta=500000.0, factor=32.0, head_dim=128)
    config = GgufConfig(
        fields, name="tiny", tensor_names=frozenset(), rope_factors=factors
    ).config()
    assert (factors[0], factors[-1]) == (1.0, 32.0)
    assert config["rope_parameters"] == {
        "rope_theta": 500000.0,
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    odd = np.array([1.5, 3.0], dtype=np.float32)
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), rope_factors=odd)
    with pytest.raises(UnsupportedModel, match="rope factors"):
        prepared(path, tmp_path)


def test_yarn_scaling_is_read(tmp_path: Path) -> None:
    extra = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 64,
    }
    path = tiny.write_gguf(
        tmp_path / "m.gguf", tiny.weights(qkv_bias=True), family="qwen2", extra=extra
    )
    model = prepared(path, tmp_path)
    assert config_of(model)["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    assert model.max_model_len == 256


@pytest.mark.parametrize(
    ("family", "extra", "complaint"),
    [
        ("gemma3", {}, "architecture gemma3"),
        ("llama", {"llama.expert_count": 8}, "mixture-of-experts"),
        ("llama", {"llama.rope.dimension_count": 2}, "partial rotary"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, "rope scaling longrope"),
    ],
)
def test_what_no_decoder_can_run_is_refused_by_name(
    tmp_path: Path, family: str, extra: dict[str, Any], complaint: str
) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), family=family, extra=extra)
    with pytest.raises(UnsupportedModel, match=complaint):
        prepared(path, tmp_path)


def test_an_unknown_way_of_splitting_text_is_refused_unless_a_tokenizer_lies_beside(
    tmp_path: Path,
) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights(), pre_tokenizer="novel")
    with pytest.raises(UnsupportedModel, match="pre-tokenizer novel"):
        prepared(path, tmp_path)
    tiny.tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_file(
        str(Path(prepared(path, tmp_path).folder) / "tokenizer.json")
    ).encode("ab").ids == [5]


def test_a_cut_file_is_not_a_gguf(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ModelUnavailable, match="not a whole GGUF file"):
        prepared(path, tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m-00001-of-00002.gguf", tiny.weights())
    with pytest.raises(ModelUnavailable, match="m-00002-of-00002.gguf is missing"):
        prepared(path, tmp_path)


def sentence_piece_fields(**changes: Any) -> dict[str, Any]:
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    merged = ["▁a", "▁ab", "ab", "▁", "a", "b"]
    scores = [0.0] * len(pieces) + [-3.0, -2.0, -1.0, -4.0, -5.0, -6.0]
    types = [2, 3, 3] + [6] * 256 + [1] * 6
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *merged],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
    } | changes


def test_sentence_piece_merges_the_best_scored_pieces_first() -> None:
    tokenizer = build_tokenizer(sentence_piece_fields(), name="tiny")
    assert tokenizer.encode("ab ab").tokens == ["▁ab", "▁ab"]
    assert tokenizer.encode("é</s>").tokens == ["▁", "<0xC3>", "<0xA9>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab é").ids) == "ab é"


def test_sentence_piece_models_start_prompts_with_bos_unless_they_say_not() -> None:
    assert adds_bos(sentence_piece_fields())
    assert not adds_bos(sentence_piece_fields(**{"tokenizer.ggml.add_bos_token": False}))
