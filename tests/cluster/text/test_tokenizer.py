"""The gateway's tokenizer agrees with the model's own and never holds up the event loop."""

import asyncio
import subprocess
import sys
import time

import pytest

from cluster.text.tokenizer import LONG_TEXT_CHARACTERS, InvalidText, TextTokenizer
from replicas.models.prepared_model import PreparedModel


def test_special_tokens_are_recognised_in_rendered_chats(demo_tokenizer: TextTokenizer) -> None:
    assert demo_tokenizer.encode("<|im_start|>user", add_special_tokens=False)[0] == 1


def test_a_model_that_wants_bos_gets_it_before_prompts_only(byte_level: TextTokenizer) -> None:
    plain = byte_level.encode("words", add_special_tokens=False)
    assert byte_level.encode("words", add_special_tokens=True) == [0, *plain]


def test_a_model_without_bos_gets_none(demo_tokenizer: TextTokenizer) -> None:
    plain = demo_tokenizer.encode("words", add_special_tokens=False)
    assert demo_tokenizer.encode("words", add_special_tokens=True) == plain


def test_a_batch_encodes_like_its_texts(byte_level: TextTokenizer) -> None:
    texts = ["one", "two words", ""]
    assert byte_level.encode_batch(texts, add_special_tokens=True) == [
        byte_level.encode(text, add_special_tokens=True) for text in texts
    ]


def test_digits_are_split_as_in_training(demo_tokenizer: TextTokenizer) -> None:
    token_ids = demo_tokenizer.encode("  42", add_special_tokens=False)
    assert [demo_tokenizer.token_text(token_id) for token_id in token_ids] == ["  ", "4", "2"]


def test_text_comes_back_as_it_was(demo_tokenizer: TextTokenizer) -> None:
    text = "Größe 東京 🙂\n\ttabs and  spaces"
    assert demo_tokenizer.decode(demo_tokenizer.encode(text, add_special_tokens=False)) == text


def test_bytes_of_tokens_join_to_the_text(sentence_piece: TextTokenizer) -> None:
    token_ids = sentence_piece.encode("the cat 🙂", add_special_tokens=False)
    joined = b"".join(sentence_piece.token_bytes(token_id) for token_id in token_ids)
    assert joined.decode() == " the cat 🙂"


def test_unknown_ids_stand_for_nothing(demo_tokenizer: TextTokenizer) -> None:
    beyond = demo_tokenizer.vocab_size + 5
    assert demo_tokenizer.decode([beyond]) == ""
    assert demo_tokenizer.token_bytes(beyond) == b""


def test_a_lone_surrogate_is_refused_by_name(demo_tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidText, match=r"U\+D800\) at character 2"):
        demo_tokenizer.encode("ab\ud800", add_special_tokens=False)
    with pytest.raises(InvalidText):
        demo_tokenizer.encode_batch(["fine", "\udfff"], add_special_tokens=False)


def test_settings_in_the_file_neither_cut_nor_fill_up_prompts(byte_level: TextTokenizer) -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "[PAD]": 1}, merges=[]))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8, pad_id=1)
    assert TextTokenizer(tokenizer, vocab_size=2).encode("aaaa", add_special_tokens=False) == [
        0,
        0,
        0,
        0,
    ]


async def test_long_and_short_texts_encode_alike(byte_level: TextTokenizer) -> None:
    for text in ("short", "long words " * LONG_TEXT_CHARACTERS):
        expected = byte_level.encode(text, add_special_tokens=True)
        assert await byte_level.encode_async(text, add_special_tokens=True) == expected


async def test_the_event_loop_runs_on_while_a_long_text_is_encoded(
    demo_tokenizer: TextTokenizer,
) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40_000
    encoding = asyncio.create_task(demo_tokenizer.encode_async(text, add_special_tokens=False))
    gaps_s = []
    while not encoding.done():
        started_at = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps_s.append(time.perf_counter() - started_at)
    assert len(gaps_s) > 20
    assert max(gaps_s) < 0.5 * sum(gaps_s)


def test_gateway_text_needs_neither_torch_nor_transformers(demo_model: PreparedModel) -> None:
    program = f"""
import sys
from cluster.text.chat_template import ChatTemplate
from cluster.text.detokenizer import IncrementalDetokenizer
from cluster.text.stop_strings import StopStringScanner
from cluster.text.tokenizer import TextTokenizer
from replicas.models.prepared_model import PreparedModel

model = PreparedModel.load({demo_model.folder!r})
tokenizer = TextTokenizer.load(model)
text = ChatTemplate.load(model).render([{{"role": "user", "content": "Hi"}}])
IncrementalDetokenizer(tokenizer).push(tokenizer.encode(text, add_special_tokens=False))
loaded = {{"torch", "transformers", "numpy", "ray"}} & set(sys.modules)
sys.exit(f"loaded {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
