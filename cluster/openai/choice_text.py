"""Turns the token entries of one choice into its text and its end, whatever their grouping.

The text of a choice depends on its tokens alone: entries may bring one token or many (a slow
reader gets several steps in one), and a stop string is found at the same token either way.
"""

from dataclasses import dataclass
from typing import Literal

from cluster.errors import ReplicaLost, RequestRefused
from cluster.openai.token_logprobs import ScoredToken
from cluster.text.detokenizer import IncrementalDetokenizer
from cluster.text.stop_strings import StopStringScanner
from replicas.request import FinishReason, TokenEntry


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """Why a choice ended, as clients hear it.

    stop_reason: the stop string that was found or the requested stop token; None for the model's
    own end token and for a full length.
    """

    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class TextRules:
    """What, beside the tokens, decides a choice's text.

    Text of the first `min_tokens` tokens is not searched for `stop_strings`.
    """

    stop_strings: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0


class ChoiceText:
    """One choice: tokens in, sendable text out, held back while it may be part of a stop string.

    num_tokens: output tokens so far, a sampled end token included. end: set once, by `push`.
    sum_logprobs: of the tokens that came with log probabilities.
    """

    __slots__ = (
        "_detokenizer",
        "_rules",
        "_scanner",
        "_scored",
        "end",
        "num_cached_tokens",
        "num_tokens",
        "sum_logprobs",
    )

    def __init__(self, detokenizer: IncrementalDetokenizer, rules: TextRules) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._scanner = (
            StopStringScanner(
                rules.stop_strings,
                include_stop_str_in_output=rules.include_stop_str_in_output,
            )
            if rules.stop_strings
            else None
        )
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.sum_logprobs = 0.0
        self._scored: list[ScoredToken] = []
        self.end: ChoiceEnd | None = None

    def push(self, entry: TokenEntry) -> tuple[str, ChoiceEnd | None]:
        """Text that this entry sets free, and the end if it is one. Not to be called after it.

        Raises ReplicaLost if the engine failed or dropped the choice, RequestRefused if it
        refused it.
        """
        assert self.end is None, f"{entry.request_id}: entry after the end of {entry.choice}"
        assert entry.index == self.num_tokens or not entry.token_ids, (
            f"{entry.request_id}: index={entry.index} after {self.num_tokens} tokens"
        )
        self.num_cached_tokens = max(self.num_cached_tokens, entry.num_cached_tokens)
        num_before = self.num_tokens
        text = self._text_of(entry.token_ids) if entry.token_ids else ""
        if entry.logprobs:
            self._score(entry, self.num_tokens - num_before)
        if entry.finish_reason is not None and self.end is None:
            text += self._finish(entry, entry.finish_reason)
        return text, self.end

    def take_scored(self) -> tuple[ScoredToken, ...]:
        """Tokens of the answer that came with log probabilities since the last call."""
        scored = tuple(self._scored)
        self._scored.clear()
        return scored

    def _score(self, entry: TokenEntry, num_taken: int) -> None:
        """num_taken: tokens of the entry before the end of the text."""
        taken = entry.logprobs[:num_taken]
        self._scored.extend(map(ScoredToken, entry.token_ids, taken))
        if entry.stop_token_id is not None and self.end is None:
            stop = entry.logprobs[len(entry.token_ids)]
            taken = (*taken, stop)
            if self._rules.include_stop_str_in_output:
                self._scored.append(ScoredToken(entry.stop_token_id, stop))
        self.sum_logprobs += sum(each.logprob for each in taken)

    def _text_of(self, token_ids: tuple[int, ...]) -> str:
        if self._scanner is None:
            self.num_tokens += len(token_ids)
            return self._detokenizer.push(token_ids)
        pieces = []
        for token_id in token_ids:
            self.num_tokens += 1
            pieces.append(self._searched(self._detokenizer.push((token_id,))))
            if self.end is not None:
                break
        return "".join(pieces)

    def _searched(self, text: str) -> str:
        if self._scanner is None or self.num_tokens <= self._rules.min_tokens:
            return text
        found = self._scanner.push(text)
        if found.stop is not None:
            self.end = ChoiceEnd("stop", found.stop)
        return found.text

    def _finish(self, entry: TokenEntry, reason: FinishReason) -> str:
        if entry.refusal is not None:
            raise RequestRefused(entry.refusal)
        if reason in (FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.REFUSED):
            raise ReplicaLost("The model server failed while it worked on this request.")
        text = self._searched(self._end_token_text(entry.stop_token_id) + self._detokenizer.flush())
        if self.end is not None:
            return text
        if self._scanner is not None:
            text += self._scanner.flush()
        self.end = self._engine_end(entry, reason)
        return text

    def _end_token_text(self, stop_token_id: int | None) -> str:
        if stop_token_id is None:
            return ""
        self.num_tokens += 1
        if not self._rules.include_stop_str_in_output:
            return ""
        return self._detokenizer.push((stop_token_id,))

    def _engine_end(self, entry: TokenEntry, reason: FinishReason) -> ChoiceEnd:
        if reason is FinishReason.LENGTH:
            return ChoiceEnd("length")
        is_requested = entry.stop_token_id in self._rules.stop_token_ids
        return ChoiceEnd("stop", entry.stop_token_id if is_requested else None)
