"""Takes replicas in turn: the baseline that any smarter policy has to beat."""

from collections.abc import Sequence

from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class RoundRobin:
    """Each candidate in turn, whatever its load."""

    uses_hits = False

    def __init__(self) -> None:
        self._turn = 0

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """The next candidate in order."""
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return Choice(chosen, "round_robin")
