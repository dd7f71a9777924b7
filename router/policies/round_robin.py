"""Takes replicas in turn: the baseline that any smarter policy has to beat."""

from collections.abc import Sequence

from router.routing_policy import Candidate, RoutingRequest


class RoundRobin:
    """Each candidate in turn, whatever its load."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Candidate:
        """The next candidate in order."""
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return chosen
