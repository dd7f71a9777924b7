"""Leaves the choice to chance: the other baseline, and what no gateway can get wrong together."""

import random
from collections.abc import Sequence

from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class RandomChoice:
    """Any candidate, each as often as the others."""

    uses_hits = False

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """One of them."""
        return Choice(self._random.choice(candidates), "random")
