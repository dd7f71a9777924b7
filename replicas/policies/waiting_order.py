"""The protocol of a scheduling policy: a choice of order and nothing else."""

from typing import Any, Protocol

from replicas.request_state import RequestState


class WaitingOrder(Protocol):
    """Sorts the waiting line; admission, budget and memory are the scheduler's."""

    def rank(self, request: RequestState, now: float) -> Any:
        """What to sort by, smallest first; comparable among requests at the same `now`."""
        ...
