"""Beam search over one request: which outputs live on after each token, and which are the best.

Plain beam search with a length penalty (Wu et al. 2016), with the choices that transformers made:
a token that ends an output counts only if it is among the best as many candidates as there are
beams. Pure arithmetic on log probabilities; where the beams' blocks lie is no matter here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicas.request import BeamSearch, FinishReason, TokenLogprob


class Branch(NamedTuple):
    """One beam after a step: the beam before it goes on with a token."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Output:
    """A finished output. score: what it is ranked by. logprobs: of its tokens, then its end's."""

    score: float
    token_ids: tuple[int, ...]
    reason: FinishReason
    stop_token_id: int | None
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class _Beam:
    total: float = 0.0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class _Candidate(NamedTuple):
    total: float
    parent: int
    token_id: int
    logprob: float


class BeamGroup:
    """The beams of one request, `width` of them once the first token is chosen.

    end_token_ids: tokens that end an output, not before min_tokens. max_tokens: tokens at which it
    ends by length. num_shown: likeliest tokens that each token's log probability comes with; None
    shows none at all.
    """

    def __init__(
        self,
        search: BeamSearch,
        *,
        width: int,
        end_token_ids: frozenset[int],
        max_tokens: int,
        min_tokens: int = 0,
        num_shown: int | None = None,
    ) -> None:
        self.width = width
        self._search = search
        self._end_token_ids = end_token_ids
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._num_shown = num_shown
        self._beams: list[_Beam] = [_Beam()]
        self._finished: list[Output] = []

    @property
    def num_candidates(self) -> int:
        """Likeliest tokens of each beam that a step needs, so that enough of them do not end."""
        return num_candidates(self.width, self._end_token_ids)

    @property
    def num_beams(self) -> int:
        """Beams that wait for a token."""
        return len(self._beams)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The finished outputs, the best first; at most `width`."""
        return tuple(self._finished)

    def advance(self, likeliest: Sequence[Sequence[tuple[int, float]]]) -> tuple[Branch, ...]:
        """Choose every beam's next token; none is left when the search has ended.

        likeliest: for each beam its `num_candidates` likeliest tokens with their log
        probabilities, likeliest first.
        """
        num_tokens = len(self._beams[0].token_ids) + 1
        living: list[_Candidate] = []
        for rank, candidate in enumerate(self._best_candidates(likeliest, num_tokens)):
            is_end = candidate.token_id in self._end_token_ids
            if is_end or num_tokens == self._max_tokens:
                if rank < self.width:
                    self._finish(candidate, likeliest[candidate.parent], is_end=is_end)
            elif len(living) < self.width:
                living.append(candidate)
        if self._is_done(living, num_tokens):
            self._beams = []
            return ()
        self._beams = [self._grown(one, likeliest[one.parent]) for one in living]
        return tuple(Branch(one.parent, one.token_id) for one in living)

    def _best_candidates(
        self, likeliest: Sequence[Sequence[tuple[int, float]]], num_tokens: int
    ) -> list[_Candidate]:
        may_end = num_tokens > self._min_tokens
        candidates = [
            _Candidate(self._beams[parent].total + logprob, parent, token_id, logprob)
            for parent, tokens in enumerate(likeliest)
            for token_id, logprob in tokens
            if may_end or token_id not in self._end_token_ids
        ]
        candidates.sort(key=lambda candidate: -candidate.total)
        return candidates[: self.num_candidates]

    def _grown(self, candidate: _Candidate, tokens: Sequence[tuple[int, float]]) -> _Beam:
        beam = self._beams[candidate.parent]
        logprobs = beam.logprobs
        if self._num_shown is not None:
            shown = TokenLogprob(candidate.logprob, tuple(tokens[: self._num_shown]))
            logprobs = (*logprobs, shown)
        return _Beam(candidate.total, (*beam.token_ids, candidate.token_id), logprobs)

    def _finish(
        self, candidate: _Candidate, tokens: Sequence[tuple[int, float]], *, is_end: bool
    ) -> None:
        whole = self._grown(candidate, tokens)
        output = Output(
            score=self._score(candidate.total, len(whole.token_ids)),
            token_ids=whole.token_ids[:-1] if is_end else whole.token_ids,
            reason=FinishReason.STOP if is_end else FinishReason.LENGTH,
            stop_token_id=candidate.token_id if is_end else None,
            logprobs=whole.logprobs,
        )
        ranked = sorted([*self._finished, output], key=lambda one: -one.score)
        self._finished = ranked[: self.width]

    def _is_done(self, living: Sequence[_Candidate], num_tokens: int) -> bool:
        if not living:
            return True
        if len(self._finished) < self.width:
            return False
        if self._search.early_stopping:
            return True
        return self._score(living[0].total, num_tokens) <= self._finished[-1].score

    def _score(self, total: float, num_tokens: int) -> float:
        score: float = total / num_tokens**self._search.length_penalty
        return score


def num_candidates(width: int, end_token_ids: frozenset[int]) -> int:
    """Likeliest tokens to look at so that `width` of them do not end an output."""
    return max(2, 1 + len(end_token_ids)) * width
