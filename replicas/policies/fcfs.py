"""First come, first served: the one order that starves nobody (lecture 11, 11.4)."""

from replicas.request_state import RequestState


class FirstComeFirstServed:
    """By arrival; a preempted request keeps its old place."""

    def rank(self, request: RequestState, now: float) -> float:
        """Arrival in seconds."""
        return request.arrived_at
