"""Looks at two replicas only, which is nearly as good as looking at all and cannot herd.

Of two replicas drawn by chance the lighter one (Mitzenmacher, "The power of two choices in
randomized load balancing"): even with old figures no replica is everybody's favourite.
"""

import random
from collections.abc import Sequence

from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class PowerOfTwo:
    """The lighter of two candidates drawn by chance, by tokens of work."""

    uses_hits = False

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """The lighter one of two."""
        drawn = self._random.sample(candidates, min(2, len(candidates)))
        return Choice(min(drawn, key=lambda drawn_one: drawn_one.load_tokens), "power_of_two")
