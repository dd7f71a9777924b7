"""Sends a request where the fewest tokens of work wait, since requests differ too much to count.

A request's cost grows with its tokens (lecture 10, 10.6: prefill and decode times), so ten short
requests are less load than one long one, and counting requests misleads.
"""

import random
from collections.abc import Sequence

from router.policies.lightest import lightest
from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class LeastLoaded:
    """The candidate with the fewest tokens of work; chance decides between equals."""

    uses_hits = False

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """The lightest candidate, counting work that was sent there a moment ago."""
        return Choice(lightest(candidates, self._random), "least_loaded")
