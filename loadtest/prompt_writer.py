"""Writes prompts of a wanted number of tokens for servers whose tokenizer may be unknown."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.program import Part, Words

# Short and common: each is one token, with the space before it, in nearly every vocabulary.
_WORD_LIST = (
    "able about above after again age air all also am among and animal another answer any are "
    "area arm art as ask at away back bad bank base be bed before began best better between big "
    "bird black blood blue board boat body book both box boy bring brother build business but "
    "buy by call came can car care case cause center change child church city class clear close "
    "cold color come common cost could country course cut dark daughter day dead deal death "
    "decide deep did do doctor dog door down draw dream drive dry each early earth east easy eat "
    "effect end energy enough even ever every example eye face fact fall family far farm fast "
    "father feel feet few field fight figure fill final find fine fire first fish five floor "
    "food foot for force form found four free friend from front full game gave general get girl "
    "give glass go gold good great green ground group grow had half hand happen hard has have he "
    "head hear heart heat heavy held help her here high hill him his hold home hope horse hot "
    "hour house how human hundred ice idea if in inside into is island it job just keep kind "
    "king knew know land large last late law lead learn left less let letter level life light "
    "like line list little live local long look lost lot love low machine made main make man "
    "many map mark market may me mean men might mile mind minute miss money month moon more "
    "morning most mother mountain move much music must my name near need never new next night no "
    "north not note nothing now number object of off office often oil old on once one only open "
    "or order other our out over own page paper part party pass past pay people person piece "
    "place plan plant play point poor power present problem product public pull put question "
    "quick radio rain ran reach read ready real red rest result rich right river road rock room "
    "round rule run said same sat saw say school science sea second see self sell sent set seven "
    "she ship short should show side simple since sing sister sit six size skin sleep slow small "
    "snow so some son song soon south space special spring stand star start state stay step "
    "still stone stood stop store story street strong study such summer sun sure system table "
    "take talk tax teach team tell ten test than that the their them then there these they thing "
    "think third this those though thought three through time to today together told too took "
    "top town tree trip true try turn two type under unit until up us use value very voice walk "
    "wall want war warm was watch water way we week well went were west what wheel when where "
    "which while white who whole why wide wife wild will wind window with woman wonder wood word "
    "work world would write year yes yet you young your"
)
COMMON_WORDS = tuple(_WORD_LIST.split())


@dataclass(frozen=True, slots=True)
class TokenScale:
    """How words become tokens on this server: `tokens = words * tokens_per_word + overhead`.

    `source` says where it comes from: tokenizer, usage (asked the server) or estimate.
    """

    tokens_per_word: float = 1.0
    overhead_tokens: int = 0
    source: str = "estimate"


class PromptWriter:
    """Turns parts into text; made-up words come from a vocabulary of one-token words."""

    def __init__(self, vocabulary: Sequence[str], scale: TokenScale) -> None:
        self._vocabulary = np.array([" " + word for word in vocabulary], dtype=object)
        self.scale = scale
        self._write_words = lru_cache(maxsize=8192)(self._words)

    def write(self, parts: Iterable[Part], *, less_tokens: int = 0) -> str:
        """Join `parts`; the last made-up part is shortened by `less_tokens` (a template's own)."""
        parts = list(parts)
        if less_tokens and parts and isinstance(parts[-1], Words):
            last = parts[-1]
            parts[-1] = Words(last.seed, max(1, last.num_tokens - less_tokens))
        return "".join(
            part if isinstance(part, str) else self._write_words(part.seed, part.num_tokens)
            for part in parts
        )

    def count_tokens(self, parts: Iterable[Part]) -> int:
        """The tokens that `write(parts)` comes to, by this writer's scale."""
        per_word = self.scale.tokens_per_word
        return sum(
            round(len(part.split()) * per_word) if isinstance(part, str) else part.num_tokens
            for part in parts
        )

    def _words(self, seed: int, num_tokens: int) -> str:
        num_words = max(1, round(num_tokens / self.scale.tokens_per_word))
        picks = np.random.default_rng(seed).integers(len(self._vocabulary), size=num_words)
        return "".join(self._vocabulary[picks])


def vocabulary_of(tokenizer_path: Path) -> list[str]:
    """Words that are exactly one token, with a space before them, in a tokenizer.json.

    Raises ValueError when fewer than 64 such words are found, FileNotFoundError without a file.
    """
    from tokenizers import Tokenizer  # heavy, and only needed when a tokenizer is named

    path = tokenizer_path / "tokenizer.json" if tokenizer_path.is_dir() else tokenizer_path
    if not path.is_file():
        raise FileNotFoundError(f"tokenizer {path}: no such file")
    tokenizer: Any = Tokenizer.from_file(str(path))
    candidates = {token[1:] for token in tokenizer.get_vocab() if token[:1] in ("Ġ", "▁")}
    plain = sorted(word for word in candidates if word.isascii() and word.isalpha())
    lower = [word for word in plain if word.islower() and 2 < len(word) < 12]
    random.Random(0).shuffle(lower)
    words = [w for w in lower[:4096] if len(_ids(tokenizer, " " + w)) == 1]
    if len(words) < 64:
        raise ValueError(f"tokenizer {path}: only {len(words)} one-token words found")
    return words


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
