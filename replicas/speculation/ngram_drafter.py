"""Guesses that a request goes on as it did after the same tokens before (prompt lookup)."""

from collections.abc import Sequence
from dataclasses import dataclass

from replicas.request_state import RequestState
from replicas.speculation.config import SpeculationConfig
from replicas.speculation.drafter import Depths, Drafts
from replicas.speculation.hit_rates import HitRates, OwnHitRates
from replicas.speculation.ngram_index import NgramIndex

# Tokens taken in while one step is planned, over all requests: a long prompt must not hold up the
# others, so its index is ready some steps later.
MAX_TOKENS_A_STEP = 2048


@dataclass(frozen=True, slots=True)
class _Lookup:
    """What is kept for one request."""

    index: NgramIndex
    rates: OwnHitRates


class NgramDrafter:
    """Implements replicas.speculation.drafter.Drafter without a model."""

    needs_last_token = False
    pass_s = 0.0

    def __init__(self, config: SpeculationConfig) -> None:
        self._config = config
        self._rates = HitRates()
        self._lookups: dict[RequestState, _Lookup] = {}

    def __len__(self) -> int:
        return len(self._lookups)

    def look_at(self, requests: Sequence[RequestState]) -> None:
        """Take in what became known of these requests."""
        num_left = MAX_TOKENS_A_STEP
        for request in requests:
            index = self._lookup(request).index
            num_new = min(len(request.tokens) - index.num_indexed, num_left)
            index.extend(request.tokens, stop=index.num_indexed + num_new)
            num_left -= num_new

    def chances(self, request: RequestState, count: int) -> Sequence[float]:
        """Of what came after the longest match, past a token that is still being sampled."""
        lookup = self._lookup(request)
        if not lookup.index.has_match or lookup.index.num_indexed < len(request.tokens):
            return ()
        num_coming = request.num_unresolved
        chances = lookup.rates.chances(lookup.index.match_tokens, num_coming + count)
        return chances[num_coming:]

    def draft(self, depths: Depths) -> Drafts:
        """What came there."""
        drafts = {}
        for request, depth in depths.items():
            num_coming = request.num_unresolved
            guess = self._lookup(request).index.guess(request.tokens, num_coming + depth)
            drafts[request] = tuple(guess[num_coming:])
        return drafts

    def note_verified(self, request: RequestState, num_guesses: int, num_accepted: int) -> None:
        """Nothing new: what the match expected is compared with every token anyway."""

    def forget(self, request: RequestState) -> None:
        """The request ended."""
        self._lookups.pop(request, None)

    def _lookup(self, request: RequestState) -> _Lookup:
        lookup = self._lookups.get(request)
        if lookup is None:
            rates = OwnHitRates(self._rates)
            index = NgramIndex(
                least=self._config.prompt_lookup_min,
                most=self._config.prompt_lookup_max,
                note_try=rates.note,
            )
            lookup = self._lookups[request] = _Lookup(index, rates)
        return lookup
