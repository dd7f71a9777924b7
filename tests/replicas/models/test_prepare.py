"""A model is made ready once, whole, and again only when it changed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from replicas.models.demo_model import check_demo_digest
from replicas.models.prepare import main, prepare_model
from replicas.models.prepared_folder import load_or_build
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelUnavailable, UnsupportedModel
from tests.replicas.models import tiny_files as tiny

PROJECT_CACHE = Path(__file__).parents[3] / ".cache" / "models"


def prepared(source: Path, tmp_path: Path) -> PreparedModel:
    return prepare_model(str(source), cache_dir=tmp_path / "cache", progress=False)


def test_a_local_models_weights_stay_where_they_are(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model")
    model = prepared(source, tmp_path)
    assert model.weights_dir == str(source)
    assert model.name == "model"
    assert not list(Path(model.folder).glob("*.safetensors"))
    assert PreparedModel.load(model.folder) == model


def test_special_tokens_are_read_as_strings_and_as_objects(tmp_path: Path) -> None:
    model = prepared(tiny.write_model(tmp_path / "model"), tmp_path)
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_ends_come_from_generation_config_tokenizer_and_chat(tmp_path: Path) -> None:
    source = tiny.write_model(
        tmp_path / "model",
        config={"eos_token_id": None},
        tokenizer_config={"chat_template": "{{ messages }}<|im_end|>"},
    )
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 1]}))
    model = prepared(source, tmp_path)
    assert model.eos_token_ids == (1, 2, 6)


@pytest.mark.parametrize(("said", "expected"), [(True, True), (False, False), (None, False)])
def test_bos_is_added_when_the_tokenizer_says_so(
    tmp_path: Path, said: bool | None, expected: bool
) -> None:
    source = tiny.write_model(tmp_path / "model", tokenizer_config={"add_bos_token": said})
    assert prepared(source, tmp_path).add_bos is expected


def test_bos_is_added_when_the_tokenizers_template_does(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    source = tiny.write_model(tmp_path / "model")
    tokenizer = tiny.tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(source / "tokenizer.json"))
    assert prepared(source, tmp_path).add_bos is True


def test_chat_templates_are_found_in_every_place(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    source = tiny.write_model(tmp_path / "model", tokenizer_config={"chat_template": named})
    folder = Path(prepared(source, tmp_path).folder)
    assert (folder / "chat_template.jinja").read_text() == "D"
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "T"
    (source / "chat_template.jinja").write_text("F")
    folder = Path(prepared(source, tmp_path).folder)
    assert (folder / "chat_template.jinja").read_text() == "F"


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, 64),
        ({"rope_type": "linear", "factor": 2.0}, 128),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
            64,
        ),
    ],
)
def test_the_longest_context_counts_rope_scaling(
    tmp_path: Path, rope: dict[str, Any] | None, expected: int
) -> None:
    source = tiny.write_model(tmp_path / "model", config={"rope_scaling": rope})
    assert prepared(source, tmp_path).max_model_len == expected


def test_equal_weights_have_equal_fingerprints_wherever_they_are(tmp_path: Path) -> None:
    first = prepared(tiny.write_model(tmp_path / "a"), tmp_path)
    second = prepared(tiny.write_model(tmp_path / "b"), tmp_path)
    assert first.folder != second.folder
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("change", [{"seed": 1}, {"config": {"rope_theta": 20000.0}}])
def test_other_weights_or_config_have_other_fingerprints(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    first = prepared(tiny.write_model(tmp_path / "a"), tmp_path)
    second = prepared(tiny.write_model(tmp_path / "b", **change), tmp_path)
    assert first.fingerprint != second.fingerprint


def test_a_changed_source_is_prepared_anew(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model")
    before = prepared(source, tmp_path)
    time.sleep(0.01)
    tiny.write_model(source, seed=1)
    after = prepared(source, tmp_path)
    assert after.folder != before.folder
    assert after.fingerprint != before.fingerprint


def test_an_unchanged_source_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.write_model(tmp_path / "model")
    model = prepared(source, tmp_path)
    monkeypatch.setattr("replicas.models.prepare._describe", None)
    assert prepared(source, tmp_path) == model


def test_sharded_weights_are_taken_whole(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model", shard_bytes=1000)
    assert len(list(source.glob("*.safetensors"))) > 2
    prepared(source, tmp_path)
    missing = sorted(source.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(ModelUnavailable, match=f"{missing.name}: missing"):
        prepared(source, tmp_path)


def test_cut_weights_are_noticed(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ModelUnavailable, match="its header says"):
        prepared(source, tmp_path)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported"),
        ({"architectures": None}, "no architecture is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised with awq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    tmp_path: Path, config: dict[str, Any], complaint: str
) -> None:
    source = tiny.write_model(tmp_path / "model", config=config)
    with pytest.raises(UnsupportedModel, match=complaint):
        prepared(source, tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"neither a config\.json nor a GGUF file"):
        prepared(tmp_path, tmp_path)


def test_pickled_weights_alone_are_not_enough(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="holds no safetensors"):
        prepared(source, tmp_path)


def test_a_folder_of_several_gguf_files_asks_which(tmp_path: Path) -> None:
    for name in ("q4.gguf", "q8.gguf"):
        tiny.write_gguf(tmp_path / name, tiny.weights())
    with pytest.raises(ModelUnavailable, match=r"name one of .*: q4\.gguf, q8\.gguf"):
        prepared(tmp_path, tmp_path)


def test_a_name_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no such folder or file, and not a hub id"):
        prepare_model("./nowhere", cache_dir=tmp_path, progress=False)


def test_another_demo_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="SHA-256 00, expected b179"):
        check_demo_digest("00", path=tmp_path)


def test_an_interrupted_build_leaves_nothing_to_be_used(tmp_path: Path) -> None:
    source = tiny.write_model(tmp_path / "model")

    def dies(draft: Path) -> PreparedModel:
        (draft / "config.json").write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_build(tmp_path / "cache", "key", dies)
    assert not (tmp_path / "cache" / "key").exists()
    finished = load_or_build(
        tmp_path / "cache", "key", lambda draft: _described(draft, prepared(source, tmp_path))
    )
    assert finished.folder == str(tmp_path / "cache" / "key")
    assert not (tmp_path / "cache" / "key" / "config.json").exists()


def _described(draft: Path, like: PreparedModel) -> PreparedModel:
    from dataclasses import replace

    return replace(like, folder=str(draft))


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    like = prepared(tiny.write_model(tmp_path / "model"), tmp_path)
    program = f"""
import time
from dataclasses import replace
from pathlib import Path
from replicas.models.prepared_folder import load_or_build
from replicas.models.prepared_model import PreparedModel

def build(draft):
    with open({str(tmp_path / "tally")!r}, "a") as tally:
        tally.write("built")
    time.sleep(0.5)
    return replace(PreparedModel.load({like.folder!r}), folder=str(draft))

print(load_or_build(Path({str(tmp_path / "cache")!r}), "shared", build).folder)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == [str(tmp_path / "cache" / "shared")] * 3
    assert (tmp_path / "tally").read_text() == "built"


def test_the_command_prints_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny.write_model(tmp_path / "model")
    assert main([str(source), "--cache-dir", str(tmp_path / "cache"), "--quiet"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "pagoda.json").is_file()


def test_the_command_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--cache-dir", str(tmp_path / "cache")]) == 1
    assert "error: " in capsys.readouterr().err


def test_a_cached_demo_is_ready_at_once_and_without_heavy_libraries() -> None:
    prepare_model("demo", cache_dir=PROJECT_CACHE, progress=False)
    program = f"""
import sys, time
from pathlib import Path
from replicas.models.prepare import prepare_model
started_at = time.perf_counter()
prepare_model("demo", cache_dir=Path({str(PROJECT_CACHE)!r}))
seconds = time.perf_counter() - started_at
loaded = {{"torch", "transformers", "tokenizers", "numpy", "gguf"}} & set(sys.modules)
sys.exit(f"loaded {{loaded}} in {{seconds}}" if loaded or seconds > 0.2 else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_model_is_the_chat_model_it_claims_to_be() -> None:
    model = prepare_model("demo", cache_dir=PROJECT_CACHE, progress=False)
    assert model.name == "SmolLM2-135M-Instruct"
    assert (model.vocab_size, model.max_model_len) == (49152, 8192)
    assert (model.eos_token_ids, model.add_bos) == ((2,), False)
    assert "<|im_start|>assistant" in (Path(model.folder) / "chat_template.jinja").read_text()
