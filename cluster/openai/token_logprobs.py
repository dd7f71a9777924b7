"""Shows log probabilities of tokens in the shapes that OpenAI's two routes have for them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from replicas.request import TokenLogprob

# JSON has no infinity; vLLM sends this instead of anything below it.
LEAST_LOGPROB = -9999.0


class ScoredToken(NamedTuple):
    """A token of an answer and how likely it was."""

    token_id: int
    score: TokenLogprob


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """One of the likeliest tokens at a place. bytes: what the token stands for in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(frozen=True, slots=True)
class ChatToken:
    """A token of the answer, with the likeliest ones at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LikelyToken]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    """`logprobs` of a chat choice."""

    content: list[ChatToken]
    refusal: None = None


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """`logprobs` of a completion choice. text_offset: characters before each token's text."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class LogprobShape(Protocol):
    """Shapes the tokens of one answer, piece by piece."""

    def __call__(
        self, choice: int, tokens: Sequence[ScoredToken]
    ) -> ChatLogprobs | CompletionLogprobs:
        """The next tokens of a choice."""
        ...


class ChatShape:
    """bytes_of: what a token stands for."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of

    def __call__(self, choice: int, tokens: Sequence[ScoredToken]) -> ChatLogprobs:
        """Each token beside the likeliest ones."""
        return ChatLogprobs([self._shown(*token) for token in tokens])

    def _shown(self, token_id: int, score: TokenLogprob) -> ChatToken:
        likely = [self._likely(other, logprob) for other, logprob in score.top]
        own = self._likely(token_id, score.logprob)
        return ChatToken(own.token, own.logprob, own.bytes, likely)

    def _likely(self, token_id: int, logprob: float) -> LikelyToken:
        piece = self._bytes_of(token_id)
        return LikelyToken(piece.decode(errors="replace"), _finite(logprob), list(piece))


class CompletionShape:
    """bytes_of: what a token stands for. Remembers how far each choice's text has come."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._offsets: dict[int, int] = {}

    def __call__(self, choice: int, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
        """Four lists of one length; the sampled token is among the likeliest ones in any case."""
        shown = CompletionLogprobs([], [], [], [])
        offset = self._offsets.get(choice, 0)
        for token_id, score in tokens:
            text = self._text(token_id)
            likely = {self._text(other): _finite(logprob) for other, logprob in score.top}
            likely.setdefault(text, _finite(score.logprob))
            shown.text_offset.append(offset)
            shown.token_logprobs.append(_finite(score.logprob))
            shown.tokens.append(text)
            shown.top_logprobs.append(likely)
            offset += len(text)
        self._offsets[choice] = offset
        return shown

    def _text(self, token_id: int) -> str:
        """A piece of a character is spelled out, since two of them would look alike otherwise."""
        piece = self._bytes_of(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float) -> float:
    return LEAST_LOGPROB if math.isnan(logprob) else max(logprob, LEAST_LOGPROB)
