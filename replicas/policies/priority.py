"""Lower priority numbers first, by arrival among equals (vLLM's scheduling_policy priority)."""

from replicas.request_state import RequestState


class PriorityOrder:
    """By the request's own priority; under load the last in line may wait without bound."""

    def rank(self, request: RequestState, now: float) -> tuple[int, float]:
        """Priority, then arrival in seconds."""
        return request.origin.priority, request.arrived_at
