"""Learns how often a guess is right, by how much of the text before it matched.

Every token that a match expected is a try, whether a step verified it or plain decoding came to it
by itself: so an engine knows when guessing would pay without paying for it.
"""

from collections.abc import Sequence

# A match of so many tokens and more counts as one kind; below, several lengths share one.
_KIND_OF_LENGTH = (0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8)
_NUM_KINDS = _KIND_OF_LENGTH[-1] + 1
# What a kind counts for before anything is known of it.
_FIRST_RATE = 0.5
_FIRST_WEIGHT = 2.0
# How much of the past is left after one more try: for everybody, and for one request.
_KEPT_BY_ALL = 0.998
_KEPT_BY_ONE = 0.95
# Tries of its own after which a request counts as much as everybody.
_SHARED_WEIGHT = 3.0


class HitRates:
    """Of all requests of an engine together."""

    def __init__(self) -> None:
        self._tries = [_FIRST_WEIGHT] * _NUM_KINDS
        self._hits = [_FIRST_WEIGHT * _FIRST_RATE] * _NUM_KINDS

    def note(self, kind: int, *, is_hit: bool) -> None:
        """One more try."""
        self._tries[kind] = self._tries[kind] * _KEPT_BY_ALL + 1.0
        self._hits[kind] = self._hits[kind] * _KEPT_BY_ALL + is_hit

    def rate(self, kind: int) -> float:
        """Share of right guesses of this kind, in [0, 1]."""
        return self._hits[kind] / self._tries[kind]


class OwnHitRates:
    """Of one request: everybody's to begin with, more and more its own."""

    def __init__(self, shared: HitRates) -> None:
        self._shared = shared
        self._tries = [0.0] * _NUM_KINDS
        self._hits = [0.0] * _NUM_KINDS

    def note(self, length: int, is_hit: bool) -> None:
        """A match of `length` tokens expected a token, and it came or did not."""
        kind = _kind_of(length)
        self._tries[kind] = self._tries[kind] * _KEPT_BY_ONE + 1.0
        self._hits[kind] = self._hits[kind] * _KEPT_BY_ONE + is_hit
        self._shared.note(kind, is_hit=is_hit)

    def chances(self, length: int, count: int) -> Sequence[float]:
        """[count]: for each of the guesses after a match, the chance that all up to it are right.

        A match that holds is one token longer with each guess.
        """
        chances = []
        chance = 1.0
        for index in range(count):
            chance *= self._rate(_kind_of(length + index))
            chances.append(chance)
        return chances

    def _rate(self, kind: int) -> float:
        weight = self._tries[kind] + _SHARED_WEIGHT
        return (self._hits[kind] + _SHARED_WEIGHT * self._shared.rate(kind)) / weight


def _kind_of(length: int) -> int:
    return _KIND_OF_LENGTH[min(length, len(_KIND_OF_LENGTH) - 1)]
