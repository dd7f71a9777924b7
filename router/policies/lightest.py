"""Finds the replica with the least work, as far as one gateway of several can know it."""

import random
from collections.abc import Sequence

from router.routing_policy import Candidate


def lightest(candidates: Sequence[Candidate], random_source: random.Random) -> Candidate:
    """The candidate with the fewest tokens of work; by chance among those not to be told apart.

    Other gateways see the same statuses and choose in the same moment. If all of them took the
    very lightest they would meet there, so a difference smaller than what they are expected to
    have sent meanwhile is none.
    """
    loads = [candidate.load_tokens for candidate in candidates]
    least = min(loads)
    equals = [
        candidate
        for candidate, load in zip(candidates, loads, strict=True)
        if load == least or load - candidate.unseen_tokens <= least
    ]
    return equals[0] if len(equals) == 1 else random_source.choice(equals)
