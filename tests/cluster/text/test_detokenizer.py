"""The streamed text of an output is the text of the whole output."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.text.detokenizer import IncrementalDetokenizer
from cluster.text.tokenizer import TextTokenizer

TEXTS = [
    "Hello, world! It doesn't matter.",
    " leading spaces   and  gaps ",
    "东京 and 東京都, 한국어, हिन्दी, العربية",
    "🙂🙃 👩‍👩‍👧‍👦 🏳️‍🌈 flags 🇫🇷🇯🇵 🇺",
    "tabs\tand\nlines\r\n\n end",
    "12345 67 8.9e-10 <|im_start|> <s>",
]


def streamed(
    tokenizer: TextTokenizer,
    token_ids: list[int],
    *,
    chunk_sizes: list[int] | None = None,
    prompt: list[int] | None = None,
    skip_special_tokens: bool = True,
) -> str:
    detokenizer = IncrementalDetokenizer(
        tokenizer, prompt_token_ids=prompt or [], skip_special_tokens=skip_special_tokens
    )
    sizes = chunk_sizes or [1]
    pieces = []
    place = turn = 0
    while place < len(token_ids):
        size = sizes[turn % len(sizes)]
        pieces.append(detokenizer.push(token_ids[place : place + size]))
        place += size
        turn += 1
    return "".join(pieces) + detokenizer.flush()


@pytest.fixture(
    params=["demo_tokenizer", "byte_level", "sentence_piece", "word_piece", "unknown_decoder"]
)
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    found: TextTokenizer = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_equals_the_whole_text(tokenizer: TextTokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(tokenizer, token_ids) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["demo_tokenizer", "byte_level", "word_piece", "unknown_decoder"])
@pytest.mark.parametrize("skips_special", [True, False])
def test_random_token_ids_stream_as_they_decode(
    request: pytest.FixtureRequest, name: str, skips_special: bool
) -> None:
    tokenizer: TextTokenizer = request.getfixturevalue(name)
    chooser = random.Random(7)
    for _ in range(200):
        length = chooser.randrange(1, 80)
        token_ids = [chooser.randrange(tokenizer.vocab_size + 3) for _ in range(length)]
        sizes = [chooser.randrange(1, 6) for _ in range(3)]
        whole = tokenizer.decode(token_ids, skip_special_tokens=skips_special)
        parts = streamed(tokenizer, token_ids, chunk_sizes=sizes, skip_special_tokens=skips_special)
        assert parts == whole


def test_single_bytes_at_random_stream_as_they_decode(byte_level: TextTokenizer) -> None:
    single_bytes = [i for i in range(byte_level.vocab_size) if len(byte_level.token_bytes(i)) == 1]
    chooser = random.Random(11)
    for _ in range(500):
        token_ids = chooser.choices(single_bytes, k=chooser.randrange(1, 30))
        assert streamed(byte_level, token_ids) == byte_level.decode(token_ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_any_text_survives_any_chunking(
    demo_tokenizer: TextTokenizer, text: str, sizes: list[int]
) -> None:
    token_ids = demo_tokenizer.encode(text, add_special_tokens=False)
    assert streamed(demo_tokenizer, token_ids, chunk_sizes=sizes) == demo_tokenizer.decode(
        token_ids
    )


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="the cats.é東🙂ab ", max_size=40))
def test_spelled_characters_stream_as_they_decode(sentence_piece: TextTokenizer, text: str) -> None:
    token_ids = sentence_piece.encode(text, add_special_tokens=False)
    assert streamed(sentence_piece, token_ids) == sentence_piece.decode(token_ids)


def test_a_character_waits_for_its_last_byte(byte_level: TextTokenizer) -> None:
    token_ids = byte_level.encode("𝄞", add_special_tokens=False)
    assert len(token_ids) > 1
    detokenizer = IncrementalDetokenizer(byte_level)
    texts = [detokenizer.push([token_id]) for token_id in token_ids]
    assert texts == [""] * (len(token_ids) - 1) + ["𝄞"]


def test_a_line_of_spelled_emoji_goes_out_one_by_one(sentence_piece: TextTokenizer) -> None:
    token_ids = sentence_piece.encode("🙂🙂", add_special_tokens=False)[-8:]
    detokenizer = IncrementalDetokenizer(sentence_piece)
    texts = [detokenizer.push([token_id]) for token_id in token_ids]
    assert texts == ["", "", "", "🙂", "", "", "", "🙂"]


def test_broken_spelled_bytes_become_replacements_as_in_whole_decoding(
    sentence_piece: TextTokenizer,
) -> None:
    first_byte = 2
    broken = [first_byte + 0xE2, first_byte + 0x82, first_byte + 0x41]
    word = sentence_piece.encode("the", add_special_tokens=False)
    token_ids = [*word, *broken, *word]
    assert streamed(sentence_piece, token_ids) == sentence_piece.decode(token_ids)


def test_half_a_character_at_the_end_shows_in_the_flush(byte_level: TextTokenizer) -> None:
    token_ids = byte_level.encode("𝄞", add_special_tokens=False)[:-1]
    detokenizer = IncrementalDetokenizer(byte_level)
    assert detokenizer.push(token_ids) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_character_begun_in_the_prompt_is_finished_by_the_output(
    byte_level: TextTokenizer,
) -> None:
    token_ids = byte_level.encode("clef 𝄞 end", add_special_tokens=False)
    clef = byte_level.encode("clef ", add_special_tokens=False)
    cut = len(clef) + 1
    assert streamed(byte_level, token_ids[cut:], prompt=token_ids[:cut]) == "𝄞 end"


def test_a_prompt_keeps_the_space_of_the_first_word(sentence_piece: TextTokenizer) -> None:
    prompt = sentence_piece.encode("the", add_special_tokens=True)
    output = sentence_piece.encode("cat", add_special_tokens=False)
    assert streamed(sentence_piece, output) == "cat"
    assert streamed(sentence_piece, output, prompt=prompt) == " cat"


def test_special_tokens_show_only_when_asked_for(demo_tokenizer: TextTokenizer) -> None:
    token_ids = demo_tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert streamed(demo_tokenizer, token_ids) == "ab"
    assert streamed(demo_tokenizer, token_ids, skip_special_tokens=False) == "a<|im_end|>b"


@pytest.mark.parametrize("name", ["demo_tokenizer", "word_piece", "unknown_decoder"])
def test_time_grows_no_faster_than_the_output(request: pytest.FixtureRequest, name: str) -> None:
    tokenizer: TextTokenizer = request.getfixturevalue(name)
    token_ids = tokenizer.encode("the quick brown fox 🙂 " * 400, add_special_tokens=False)

    def seconds(repeats: int) -> float:
        # This thread's own: what else the machine does is not in it.
        started_at = time.thread_time()
        streamed(tokenizer, token_ids * repeats)
        return time.thread_time() - started_at

    seconds(1)
    once = min(seconds(1) for _ in range(3))
    assert min(seconds(8) for _ in range(2)) < 8 * once * 2.5
