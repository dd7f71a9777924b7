"""Keeps a conversation on one replica by its name alone, without any memory of earlier requests.

Every replica gets a number from its id and the session's; the highest takes the session (rendezvous
hashing, consistent hashing without a ring). All gateways agree on it without talking, and when a
replica comes or goes only the sessions that it gets or had move. Loads are bounded: a replica with
much more work than the mean passes a request on to the session's next best (consistent hashing
with bounded loads, Mirrokni, Thorup and Zadimoghaddam).
"""

import random
from collections.abc import Sequence
from hashlib import blake2b

from router.policies.lightest import lightest
from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class Session:
    """The session's own replica; a request without a session goes to the lightest.

    load_slack: how far above the mean load a replica may be, as a share of it, beside one request
    of this size; at least 0.
    """

    uses_hits = False

    def __init__(self, random_source: random.Random, *, load_slack: float) -> None:
        self._random = random_source
        self._load_slack = load_slack

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """The first in the session's own order that is not overloaded."""
        if not request.session_id:
            return Choice(lightest(candidates, self._random), "session_none")
        loads = [candidate.load_tokens for candidate in candidates]
        bound = (1.0 + self._load_slack) * sum(loads) / len(loads) + request.work_tokens
        key = blake2b(request.session_id.encode(), digest_size=32).digest()
        ranks = [_rank(key, candidate.status.replica_id) for candidate in candidates]
        own = max(range(len(candidates)), key=ranks.__getitem__)
        if loads[own] <= bound:
            return Choice(candidates[own], "session_owner")
        # The lightest is never above the mean, so one is always left.
        fitting = (index for index in range(len(candidates)) if loads[index] <= bound)
        return Choice(candidates[max(fitting, key=ranks.__getitem__)], "session_overflow")


def _rank(key: bytes, replica_id: str) -> bytes:
    return blake2b(replica_id.encode(), key=key, digest_size=8).digest()
