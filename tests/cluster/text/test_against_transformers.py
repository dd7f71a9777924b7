"""Rendering and encoding agree with transformers, which needs a process with torch in it."""

import json
import subprocess
import sys
from datetime import datetime

import pytest

from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from replicas.models.prepared_model import PreparedModel
from tests.cluster.text import chat_templates

pytestmark = pytest.mark.slow

# In a process of its own: the other tests of this folder check that nothing here needs torch.
PROGRAM = """
import json, sys
from transformers import AutoTokenizer
asked = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
texts = []
for case in asked["cases"]:
    template = case.pop("template")
    texts.append(tokenizer.apply_chat_template(
        case.pop("messages"), chat_template=template, tokenize=False, **case))
json.dump({"texts": texts, "ids": [tokenizer.encode(t) for t in asked["plain"]]}, sys.stdout)
"""
TALK = [
    {"role": "user", "content": "Bonjour, ça va ? <b>&</b> 🙂"},
    {"role": "assistant", "content": " Oui, merci. "},
    {"role": "user", "content": "  spaces around\n"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TALK]
TOOLS = [{"type": "function", "function": {"name": "wëather", "parameters": {"type": "object"}}}]
CASES = [
    {"messages": TALK, "add_generation_prompt": True},
    {"messages": SYSTEM, "add_generation_prompt": False},
    {"messages": TALK[:2], "continue_final_message": True, "add_generation_prompt": False},
    {"messages": TALK, "add_generation_prompt": True, "tools": TOOLS},
]
# The last style raises on a system message.
STYLES = [
    (None, CASES),
    (chat_templates.CHATML, CASES),
    (chat_templates.LLAMA3, CASES),
    (chat_templates.MISTRAL, [case for case in CASES if case["messages"] is not SYSTEM]),
]
PLAIN = ["Hello, world!", "  12345 don't 東京 🙂\n\n\tdef f(x):", "<|im_start|>user\nHi<|im_end|>"]


def ask_transformers(model: PreparedModel) -> dict[str, list[str]]:
    cases = [{**case, "template": template} for template, cases in STYLES for case in cases]
    asked = {"folder": model.folder, "cases": cases, "plain": PLAIN}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def test_texts_and_tokens_equal_those_of_transformers(
    demo_model: PreparedModel, demo_tokenizer: TextTokenizer
) -> None:
    expected = ask_transformers(demo_model)
    texts = []
    for template, cases in STYLES:
        ours = ChatTemplate.load(demo_model)
        if template is not None:
            ours = ChatTemplate(
                {"default": template}, special_tokens=demo_model.special_tokens, now=datetime.now
            )
        texts += [
            ours.render(case["messages"], **{k: v for k, v in case.items() if k != "messages"})
            for case in cases
        ]
    assert texts == expected["texts"]
    ids = [demo_tokenizer.encode(text, add_special_tokens=True) for text in PLAIN]
    assert ids == expected["ids"]
