"""Prompts have the wanted number of tokens by the scale that is known."""

import json
from pathlib import Path

import pytest

from loadtest.program import Words
from loadtest.prompt_writer import COMMON_WORDS, PromptWriter, TokenScale, vocabulary_of


def test_equal_seeds_write_equal_text_and_a_longer_one_begins_with_it() -> None:
    writer = PromptWriter(COMMON_WORDS, TokenScale())
    short, long = writer.write([Words(7, 50)]), writer.write([Words(7, 80)])
    assert long.startswith(short)
    assert writer.write([Words(8, 50)]) != short


def test_a_scale_of_tokens_per_word_changes_the_number_of_words() -> None:
    writer = PromptWriter(COMMON_WORDS, TokenScale(tokens_per_word=1.25))
    assert len(writer.write([Words(1, 100)]).split()) == 80


def test_a_templates_tokens_are_taken_from_the_last_made_up_part() -> None:
    writer = PromptWriter(COMMON_WORDS, TokenScale())
    assert len(writer.write([Words(1, 40), Words(2, 60)], less_tokens=12).split()) == 88


def test_given_text_is_not_touched() -> None:
    writer = PromptWriter(COMMON_WORDS, TokenScale())
    assert writer.write(["Hello, ", "world"], less_tokens=5) == "Hello, world"


def test_a_tokenizers_vocabulary_gives_exact_lengths(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [word for word in COMMON_WORDS if len(word) > 2]
    model = tokenizers.models.WordLevel({"Ġ" + w: i for i, w in enumerate(words)}, unk_token="Ġthe")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    found = vocabulary_of(path)
    assert set(found) <= set(words)
    text = PromptWriter(found, TokenScale(source="tokenizer")).write([Words(3, 200)])
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 200


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        vocabulary_of(tmp_path)


def test_the_word_list_has_no_repeats() -> None:
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS) > 400
    assert json.dumps(COMMON_WORDS).isascii()
