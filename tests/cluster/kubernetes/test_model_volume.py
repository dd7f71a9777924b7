"""The init step that places a model on a pod's volume."""

from pathlib import Path

import pytest

from cluster.kubernetes import model_volume
from cluster.kubernetes.model_volume import WrongModel, main, place_model
from replicas.models.prepared_model import PreparedModel


def a_model(folder, fingerprint="f" * 64):
    folder.mkdir(parents=True)
    model = PreparedModel(
        folder=str(folder),
        name="tiny",
        weights_dir=str(folder),
        fingerprint=fingerprint,
        architecture="LlamaForCausalLM",
        vocab_size=8,
        max_model_len=16,
        eos_token_ids=(2,),
        bos_token_id=None,
        add_bos=False,
        special_tokens={},
    )
    model.save()
    return model


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """What `prepare_model` finds for each spec."""
    models = {
        "org/one": a_model(tmp_path / "cache" / "one-1", "1" * 64),
        "org/two": a_model(tmp_path / "cache" / "two-2", "2" * 64),
    }
    monkeypatch.setattr(model_volume, "prepare_model", lambda spec, **_: models[spec])
    return models


def test_the_link_leads_to_the_model(prepared, tmp_path):
    link = tmp_path / "model"
    place_model("org/one", cache_dir=tmp_path / "cache", link=link, fingerprint="1" * 64)
    found = PreparedModel.load(link)
    assert found.fingerprint == "1" * 64
    assert found.weights_dir == str(link)


def test_a_link_moves_to_another_model(prepared, tmp_path):
    link = tmp_path / "model"
    for spec in ("org/one", "org/two"):
        place_model(spec, cache_dir=tmp_path / "cache", link=link)
    assert PreparedModel.load(link).fingerprint == "2" * 64


def test_another_model_than_the_checksum_says_is_not_linked(prepared, tmp_path, capsys):
    link = tmp_path / "model"
    with pytest.raises(WrongModel, match=f"{'1' * 64}, expected {'2' * 64}"):
        place_model("org/one", cache_dir=tmp_path / "cache", link=link, fingerprint="2" * 64)
    assert not link.is_symlink()
    options = ["--model=org/one", f"--cache-dir={tmp_path}", f"--link={link}"]
    assert main([*options, f"--fingerprint={'2' * 64}"]) == 1
    assert "expected" in capsys.readouterr().err
    assert main(options) == 0


def test_a_spec_that_leads_nowhere_is_said_and_ends_with_a_fault(tmp_path, capsys):
    options = [f"--cache-dir={tmp_path}", f"--link={tmp_path / 'model'}"]
    assert main(["--model=/no/such/folder", *options]) == 1
    assert "/no/such/folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_model_is_placed_and_checked(tmp_path):
    cache = Path(__file__).parents[3] / ".cache" / "models"
    link = tmp_path / "model"
    model = place_model("demo", cache_dir=cache, link=link)
    assert PreparedModel.load(link).fingerprint == model.fingerprint
