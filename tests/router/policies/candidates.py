"""Candidates for tests of policies, by their loads."""

from router.replica_status import ReplicaState, ReplicaStatus
from router.routing_policy import Candidate, RoutingRequest


def candidates_of(**loads: int) -> list[Candidate]:
    """One active replica for each name, with so many tokens of work."""
    return [
        Candidate(ReplicaStatus(name, state=ReplicaState.ACTIVE, outstanding_tokens=load), 0)
        for name, load in loads.items()
    ]


def a_request(tokens: int = 100, *, num_blocks: int = 0, session: str = "") -> RoutingRequest:
    """One whose prompt and output make so many tokens."""
    hashes = tuple(bytes([number]) * 32 for number in range(num_blocks))
    return RoutingRequest("r", tokens - 1, 1, block_hashes=hashes, session_id=session)
