"""Preparing a model in a process of its own: the answer comes back, or the reason."""

import sys

import pytest

from cluster.launch.prepare_apart import ModelNotReady, prepare_apart
from replicas.models import prepare


@pytest.fixture
def prepared(tmp_path):
    """What the child process would make; forked children see the patched function."""
    (tmp_path / "pagoda.json").write_text(
        '{"folder": "", "name": "tiny", "weights_dir": "w", "fingerprint": "f", '
        '"architecture": "LlamaForCausalLM", "vocab_size": 8, "max_model_len": 16, '
        '"eos_token_ids": [1], "bos_token_id": null, "add_bos": false, "special_tokens": {}}'
    )
    return tmp_path


def replace_prepare(monkeypatch, function):
    monkeypatch.setattr(prepare, "prepare_model", function)


def test_the_prepared_model_comes_back(monkeypatch, prepared, tmp_path):
    class Made:
        folder = str(prepared)

    replace_prepare(monkeypatch, lambda spec, cache_dir: Made)
    model = prepare_apart("tiny", cache_dir=tmp_path)
    assert (model.name, model.folder) == ("tiny", str(prepared))


def test_an_unknown_model_is_refused_in_words(tmp_path):
    with pytest.raises(ModelNotReady, match="no such folder or file"):
        prepare_apart("./no-such-model", cache_dir=tmp_path)


def test_a_process_that_dies_is_reported(monkeypatch, tmp_path):
    replace_prepare(monkeypatch, lambda spec, cache_dir: sys.exit(9))
    with pytest.raises(ModelNotReady, match="preparing tiny ended with code 9"):
        prepare_apart("tiny", cache_dir=tmp_path)
