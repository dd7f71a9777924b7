"""Sends a request where the fewest tokens of work wait, since requests differ too much to count.

A request's cost grows with its tokens (lecture 10, 10.6: prefill and decode times), so ten short
requests are less load than one long one, and counting requests misleads.
"""

from collections.abc import Sequence

from router.routing_policy import Candidate, RoutingRequest


class LeastLoaded:
    """The candidate with the fewest tokens of work; equals take turns."""

    name = "least_loaded"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Candidate:
        """The lightest candidate, counting work that was sent there a moment ago."""
        # Without turns, idle replicas would always be taken in the same order, and several
        # gateways would all begin with the same one.
        start = self._turn % len(candidates)
        self._turn += 1
        rotated = (*candidates[start:], *candidates[:start])
        return min(rotated, key=lambda candidate: candidate.load_tokens)
