"""Tokenizers of every kind that the gateway meets, small ones built on the spot."""

from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from cluster.text.tokenizer import TextTokenizer
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It doesn't mind!",
    "Größe, naïve café, 東京 и Москва, 🙂🙃 and 👩‍👩‍👧",
    "def stop(x):\n    return x  # two  spaces\n\n",
    "numbers 1 22 333 4444, and words, words, words again and again",
]


@pytest.fixture(scope="session")
def demo_model() -> PreparedModel:
    cache_dir = Path(__file__).parents[3] / ".cache" / "models"
    return prepare_model("demo", cache_dir=cache_dir, progress=False)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: PreparedModel) -> TextTokenizer:
    return TextTokenizer.load(demo_model)


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("plain added", special=False), AddedToken("café")])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level() -> TextTokenizer:
    tokenizer = _byte_level_bpe()
    return TextTokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size(), bos_token_id=0)


@pytest.fixture(scope="session")
def unknown_decoder() -> TextTokenizer:
    """Byte-level tokens behind a decoder whose steps the house does not know."""
    tokenizer = _byte_level_bpe()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return TextTokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size())


@pytest.fixture(scope="session")
def sentence_piece() -> TextTokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁the", "▁cat", "s", "▁sat", ".", "▁▁", "a", "b", "c", "é", "東"]
    vocabulary = {
        token: token_id for token_id, token in enumerate(["<unk>", "<s>", *byte_tokens, *words])
    }
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, ignore_merges=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>"])
    return TextTokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size(), bos_token_id=1)


@pytest.fixture(scope="session")
def word_piece() -> TextTokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return TextTokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size())
