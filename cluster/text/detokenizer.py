"""Turns a growing line of token ids into text, once per token and never taking a word back."""

from collections.abc import Sequence
from typing import Protocol

from cluster.text.token_pieces import TokenPieces
from cluster.text.tokenizer import TextTokenizer
from cluster.text.utf8_stream import REPLACEMENT, ReplacingUtf8, SpelledUtf8

# A character is at most four bytes, so four tokens with text decide how a prompt ends.
_CONTEXT_TOKENS = 4
_WINDOW_TOKENS = 16


class _TextStream(Protocol):
    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class IncrementalDetokenizer:
    """The text of one choice as its tokens come.

    All pushes and the flush together give what decoding the whole output after the prompt gives,
    however the tokens are chunked, in time linear in their number. Text that a later token could
    still change (half a character) is held back. The one difference: see SpelledUtf8.

    prompt_token_ids: what came before; only its end matters. Without it the output is decoded as
    if it stood alone, which drops the first space of SentencePiece models.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._pieces = tokenizer.pieces
        self._skips_special = skip_special_tokens
        self._stream = _stream(tokenizer)
        for token_id in self._end_of(prompt_token_ids):
            self._stream.push(token_id)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain; often empty in the middle of a character."""
        return "".join([self._stream.push(i) for i in token_ids if not self._is_skipped(i)])

    def flush(self) -> str:
        """The rest, when no more tokens will come."""
        return self._stream.flush()

    def _is_skipped(self, token_id: int) -> bool:
        return self._skips_special and self._pieces.is_special(token_id)

    def _end_of(self, prompt_token_ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for token_id in reversed(prompt_token_ids):
            if len(found) == _CONTEXT_TOKENS:
                break
            if not self._is_skipped(token_id):
                found.append(token_id)
        return found[::-1]


def _stream(tokenizer: TextTokenizer) -> _TextStream:
    rules = tokenizer.pieces.rules
    if rules.kind == "byte_level":
        return _ByteLevelStream(tokenizer.pieces)
    if rules.kind == "sentence_piece":
        return _SentencePieceStream(tokenizer.pieces)
    return _WindowStream(tokenizer)


class _ByteLevelStream:
    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._utf8 = ReplacingUtf8()

    def push(self, token_id: int) -> str:
        return self._utf8.push(self._pieces.bytes_of(token_id))

    def flush(self) -> str:
        return self._utf8.flush()


class _SentencePieceStream:
    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._utf8 = SpelledUtf8()
        self._strips_next_space = pieces.rules.strips_first_space

    def push(self, token_id: int) -> str:
        piece = self._pieces.bytes_of(token_id)
        if self._pieces.is_spelled_byte(token_id):
            text = self._utf8.push_byte(piece)
        else:
            text = self._utf8.end_run() + piece.decode()
        return self._strip(text)

    def flush(self) -> str:
        return self._strip(self._utf8.end_run())

    def _strip(self, text: str) -> str:
        if not self._strips_next_space or not text:
            return text
        self._strips_next_space = False
        return text.removeprefix(" ")


class _WindowStream:
    """For decoders whose rules are their own secret: decode the last few tokens again and again.

    `_sent` characters of the window's text are out. The window is cut to half when full, so a
    token costs at most _WINDOW_TOKENS tokens of decoding.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._sent = 0

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode()
        certain = len(text) - _held_characters(text)
        fresh = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if len(self._window) >= _WINDOW_TOKENS:
            self._cut(unsent=len(text) - self._sent)
        return fresh

    def flush(self) -> str:
        text = self._decode()
        rest, self._sent = text[self._sent :], len(text)
        return rest

    def _cut(self, *, unsent: int) -> None:
        self._window = self._window[-_WINDOW_TOKENS // 2 :]
        self._sent = max(0, len(self._decode()) - unsent)

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


def _held_characters(text: str) -> int:
    """Replacement characters at the end that more bytes may yet turn into one character."""
    return min(len(text) - len(text.rstrip(REPLACEMENT)), 4)
