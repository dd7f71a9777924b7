"""Knows the bytes that each token stands for, so text can be decoded token by token."""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_SPACE_MARK = "▁"


def _byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes stand for themselves, others move up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(moved)}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """How a tokenizer's decoder turns tokens into text, where that is known byte by byte.

    kind: "byte_level" (GPT-2 and kin), "sentence_piece" (spaces marked, rare characters spelled
    in byte tokens), or "whole_text" (anything else: only the decoder itself knows).
    strips_first_space: the first space of the whole text is dropped.
    """

    kind: str
    strips_first_space: bool = False


def decoding_rules(tokenizer: Tokenizer) -> DecodingRules:
    """Read the rules off a tokenizer's decoder."""
    decoder = tokenizer.decoder
    if decoder is None:
        return DecodingRules("whole_text")
    steps = _steps(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecodingRules("byte_level")
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _replaces_space_mark(steps[0]):
        if kinds[3:] == []:
            return DecodingRules("sentence_piece")
        if kinds[3:] == ["Strip"] and _strips_one_leading_space(steps[3]):
            return DecodingRules("sentence_piece", strips_first_space=True)
    return DecodingRules("whole_text")


class TokenPieces:
    """Bytes of each token id, worked out when first asked for and kept.

    Holds for a tokenizer whose `rules` are byte by byte, and describes single tokens of others.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.rules = decoding_rules(tokenizer)
        self._tokenizer = tokenizer
        self._special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._alphabet = _byte_of_character()
        self._bytes: dict[int, bytes] = {}
        self._spelled_ids: set[int] = set()

    def is_special(self, token_id: int) -> bool:
        """Whether decoding may leave the token out."""
        return token_id in self._special_ids

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to the text; empty for an id that the tokenizer does not know."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._work_out(token_id)
        return known

    def is_spelled_byte(self, token_id: int) -> bool:
        """Whether a SentencePiece token spells a single byte (`<0xE2>`)."""
        self.bytes_of(token_id)
        return token_id in self._spelled_ids

    def _work_out(self, token_id: int) -> bytes:
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self.rules.kind == "byte_level":
            # A token outside the alphabet was added as plain text.
            if all(character in self._alphabet for character in token):
                return bytes(self._alphabet[character] for character in token)
            return token.encode()
        if self.rules.kind == "sentence_piece":
            byte = _spelled_byte(token)
            if byte is not None:
                self._spelled_ids.add(token_id)
                return byte
            return token.replace(_SPACE_MARK, " ").encode()
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _replaces_space_mark(step: dict[str, Any]) -> bool:
    return (step["pattern"], step["content"]) == ({"String": _SPACE_MARK}, " ")


def _strips_one_leading_space(step: dict[str, Any]) -> bool:
    return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)


def _spelled_byte(token: str) -> bytes | None:
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return bytes.fromhex(token[3:5])
    except ValueError:
        return None
