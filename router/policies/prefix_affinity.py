"""Sends a request where its prefix is computed already, unless that replica has too much to do.

Score = hit fraction - load_weight * relative load (where load is left out, one replica ends up
with every request of a popular prefix). Relative load is how much more work a replica has
than the lightest, counted in the mean replica's load or in twice this request's own work, whichever
is larger: a batch of few takes one more nearly for free, so a few requests on an otherwise idle
cluster do not chase a conversation from its cache, and under full load hits still decide between
replicas that are about equally busy.
"""

import random
from collections.abc import Sequence

from router.policies.lightest import lightest
from router.routing_policy import Candidate, Choice, Hits, RoutingRequest


class PrefixAffinity:
    """The candidate with the best score; a miss goes to the lightest.

    load_weight: what one unit of relative load takes from the score; 0 looks at hits alone.
    """

    uses_hits = True

    def __init__(self, random_source: random.Random, *, load_weight: float) -> None:
        self._random = random_source
        self._load_weight = load_weight

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice:
        """The best of those that hold a part of the prefix, and of the lightest."""
        light = lightest(candidates, self._random)
        if not hits:
            return Choice(light, "prefix_miss")
        loads = [candidate.load_tokens for candidate in candidates]
        held = [hits.get(candidate.status.replica_id, 0) for candidate in candidates]
        unit = max(sum(loads) / len(loads), 2 * request.work_tokens, 1)
        # Weighed in blocks instead of shares, so that the loop divides nothing.
        per_token = self._load_weight * len(request.block_hashes) / unit
        scores = [hit - per_token * load for hit, load in zip(held, loads, strict=True)]
        best_score = max(scores)
        light_score = hits.get(light.status.replica_id, 0) - per_token * light.load_tokens
        best = light if light_score == best_score else candidates[scores.index(best_score)]
        if best.status.replica_id in hits:
            return Choice(best, "prefix_hit")
        return Choice(light, "prefix_overloaded" if any(held) else "prefix_miss")
