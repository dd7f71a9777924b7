"""Builds the fast tokenizer that a GGUF file describes, splitting text as its trainer did."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from replicas.models.supported import UnsupportedModel

_CONTROL, _USER_DEFINED = 3, 4

_LETTERS_AND_MARKS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = rf"{_LETTERS_AND_MARKS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"

_SPLIT_PATTERNS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_TAKES_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
_ADDS_BOS_UNASKED = ("llama-bpe", "llama3", "llama-v3", "tekken")


def build_tokenizer(fields: Mapping[str, Any], *, name: str) -> Tokenizer:
    """The tokenizer in a GGUF's metadata (`fields`, key to value).

    Raises UnsupportedModel, by name, for a kind or a way of splitting text that is not known:
    a guess would tokenise some texts differently from the model's training.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields, name=name)
    elif kind == "llama":
        tokenizer = _sentence_piece(fields)
    else:
        raise UnsupportedModel(
            f"model {name}: GGUF tokenizer {kind} is not supported; "
            "put the model's tokenizer.json beside the file"
        )
    _add_special_tokens(tokenizer, fields)
    return tokenizer


def adds_bos(fields: Mapping[str, Any]) -> bool:
    """Whether a prompt starts with the begin token, with llama.cpp's defaults where unsaid."""
    unsaid = (
        fields.get("tokenizer.ggml.model") == "llama"
        or fields.get("tokenizer.ggml.pre") in _ADDS_BOS_UNASKED
    )
    return bool(fields.get("tokenizer.ggml.add_bos_token", unsaid))


def _byte_level(fields: Mapping[str, Any], *, name: str) -> Tokenizer:
    splitting = fields.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: token_id for token_id, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting in _TAKES_WHOLE_WORDS)
    )
    if splitting in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(str(splitting), name=name)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(splitting: str, *, name: str) -> Any:
    if splitting in _SPLIT_PATTERNS:
        split = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[splitting]), behavior="isolated")
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, whole])
    if splitting == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if splitting == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    raise UnsupportedModel(
        f"model {name}: GGUF pre-tokenizer {splitting} is not known; "
        "put the model's tokenizer.json beside the file"
    )


def _sentence_piece(fields: Mapping[str, Any]) -> Tokenizer:
    pieces: Sequence[str] = fields["tokenizer.ggml.tokens"]
    scores: Sequence[float] = fields["tokenizer.ggml.scores"]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    unknown = pieces[int(fields.get("tokenizer.ggml.unknown_token_id", 0))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_from_scores(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    starts_with_space = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if starts_with_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        undo.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges_from_scores(
    vocabulary: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best-scored piece first, as SentencePiece merges."""
    ranked = []
    for piece, token_id in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[token_id], vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_special_tokens(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    types = fields["tokenizer.ggml.token_type"]
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(fields["tokenizer.ggml.tokens"], types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
