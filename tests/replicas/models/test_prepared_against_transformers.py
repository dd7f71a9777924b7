"""What was prepared is what transformers would have read, which needs processes with torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from replicas.models.demo_model import find_demo_gguf
from replicas.models.prepare import prepare_model
from tests.replicas.models import tiny_files as tiny

pytestmark = pytest.mark.slow

PROJECT_CACHE = Path(__file__).parents[3] / ".cache" / "models"

COMPARE_WEIGHTS = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
folder, gguf = sys.argv[1:]
ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
with torch.device("meta"):
    empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
theirs = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=empty)["tensors"]
state = ours.state_dict()
assert set(state) - set(theirs) == {"lm_head.weight"}, set(state) ^ set(theirs)
for name, value in theirs.items():
    assert torch.equal(torch.as_tensor(value).to(torch.bfloat16), state[name]), name
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_models_weights_equal_transformers_bit_for_bit() -> None:
    model = prepare_model("demo", cache_dir=PROJECT_CACHE, progress=False)
    run(COMPARE_WEIGHTS, model.folder, str(find_demo_gguf()))


def test_a_slow_tokenizer_is_converted(tmp_path: Path) -> None:
    source = tiny.write_model(
        tmp_path / "model", tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"}
    )
    (source / "tokenizer.json").unlink()
    (source / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(tiny.WORDS)}))
    (source / "merges.txt").write_text("#version: 0.2\na b\n")
    program = """
import sys
from pathlib import Path
from tokenizers import Tokenizer
from replicas.models.prepare import prepare_model
model = prepare_model(sys.argv[1], cache_dir=Path(sys.argv[2]), progress=False)
tokenizer = Tokenizer.from_file(model.folder + "/tokenizer.json")
assert tokenizer.encode("ab").tokens == ["ab"], tokenizer.encode("ab").tokens
"""
    run(program, str(source), str(tmp_path / "cache"))
