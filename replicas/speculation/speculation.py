"""Conducts speculation: which guesses join a step, what came of them, what that has taught."""

from collections.abc import Iterable, Sequence

from replicas.request_state import RequestState
from replicas.speculation.config import SpeculationConfig
from replicas.speculation.depths import StepCosts, choose_depths
from replicas.speculation.drafter import Depths, Drafter, Drafts
from replicas.speculation.stats import SpeculationStats
from replicas.speculation.step_table import StepTable
from replicas.speculation.verification import num_confirmed

_OVERHEAD_SMOOTHING = 0.1
_LEAST_OVERHEAD_S = 0.0005


class Speculation:
    """Of one engine. drafter: who guesses; None switches all of it off."""

    def __init__(self, config: SpeculationConfig, drafter: Drafter | None) -> None:
        self._most = config.num_speculative_tokens
        self._drafter = drafter
        self._steps = StepTable()
        self._overhead_s = 0.0
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._accepted = [0] * (self._most if drafter is not None else 0)

    @property
    def is_on(self) -> bool:
        """Whether anybody guesses."""
        return self._drafter is not None

    def depths(
        self, requests: Sequence[RequestState], *, num_tokens: int, most: int
    ) -> dict[RequestState, int]:
        """How many guesses of each request a step should verify; those that have any.

        requests: those of which it computes one token, after which one is sampled. num_tokens: of
        the whole step as it is planned. most: tokens that may still be added to it.
        """
        drafter = self._drafter
        if drafter is None or not requests or most < 1:
            return {}
        drafter.look_at(requests)
        if not self._steps.is_known:
            return {}
        depths = choose_depths(
            [drafter.chances(each, self._room(each)) for each in requests],
            num_tokens=num_tokens,
            most=most,
            costs=StepCosts(self._steps.seconds, self._overhead_s, drafter.pass_s),
        )
        return {each: depth for each, depth in zip(requests, depths, strict=True) if depth}

    def must_wait(self, requests: Iterable[RequestState]) -> bool:
        """Whether guesses for these can only be made when what is being sampled now is known."""
        if self._drafter is None or not self._drafter.needs_last_token:
            return False
        return any(request.num_unresolved for request in requests)

    def draft(self, depths: Depths) -> Drafts:
        """So many guesses for each of these requests; `depths` were given before."""
        assert self._drafter is not None, "nobody guesses"
        return self._drafter.draft(depths)

    def verify(self, request: RequestState, guesses: Sequence[int], sampled: Sequence[int]) -> int:
        """Guesses confirmed by what was sampled after each of them; counts them."""
        assert self._drafter is not None, "nobody guesses"
        num_accepted = num_confirmed(guesses, sampled)
        self._drafter.note_verified(request, len(guesses), num_accepted)
        self._num_drafts += 1
        self._num_draft_tokens += len(guesses)
        for position in range(num_accepted):
            self._accepted[position] += 1
        return num_accepted

    def note_step(self, num_tokens: int, *, seconds: float) -> None:
        """A step was computed."""
        if self.is_on:
            self._steps.record(num_tokens, seconds=seconds)

    def note_overhead(self, seconds: float) -> None:
        """How long the runner stood idle since a step could not be planned while it ran."""
        # Bounded, since somebody else on the machine may have had the core for a while.
        counted = min(seconds, 2.0 * self._overhead_s + _LEAST_OVERHEAD_S)
        self._overhead_s += (counted - self._overhead_s) * _OVERHEAD_SMOOTHING

    def forget(self, request: RequestState) -> None:
        """The request ended."""
        if self._drafter is not None:
            self._drafter.forget(request)

    def stats(self) -> SpeculationStats:
        """A snapshot."""
        return SpeculationStats(
            num_drafts_total=self._num_drafts,
            num_draft_tokens_total=self._num_draft_tokens,
            num_accepted_tokens_total=sum(self._accepted),
            accepted_per_position=tuple(self._accepted),
        )

    def _room(self, request: RequestState) -> int:
        """Guesses after which the token that is sampled anyway still keeps to max_tokens."""
        num_known = len(request.tokens) + request.num_unresolved
        return min(self._most, request.max_known - num_known - 1)
