"""Sends a request where its answer is predicted to be complete first, or says that none can be.

Every candidate's TTFT and TPOT are predicted from its queue, its free places and blocks, what of
the prefix it holds or could fetch, and its measured pace. This is the only policy that refuses: if
no candidate can meet the latencies that a request states, computing it would only make others late.
"""

import random
from collections.abc import Sequence

from router.policies.lightest import lightest
from router.prediction import expected_output_tokens, predicted_tpot_s, predicted_ttft_s
from router.routing_policy import Candidate, Choice, Hits, RoutingRequest, Unmeetable


class Cost:
    """The candidate with the least predicted time to the end of the answer, among those in time.

    Without a measured pace anywhere it takes the lightest and refuses nothing: it has no ground to.
    """

    uses_hits = True

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice | Unmeetable:
        """The cheapest; Unmeetable when every candidate would miss a stated latency."""
        measured = [candidate for candidate in candidates if candidate.pace.is_measured]
        if not measured:
            return Choice(lightest(candidates, self._random), "cost_unmeasured")
        longest = max(hits.values(), default=0)
        max_ttft_s = float("inf") if request.max_ttft_s is None else request.max_ttft_s
        max_tpot_s = float("inf") if request.max_tpot_s is None else request.max_tpot_s
        best: Candidate | None = None
        best_s = float("inf")
        missed: list[tuple[float, float]] = []
        for candidate in measured:
            num_hits = hits.get(candidate.status.replica_id, 0)
            can_fetch = candidate.status.fetch_token_s > 0.0
            ttft_s = predicted_ttft_s(
                candidate,
                request,
                num_hit_blocks=num_hits,
                num_fetch_blocks=longest - num_hits if can_fetch else 0,
            )
            tpot_s = predicted_tpot_s(candidate)
            if ttft_s > max_ttft_s or tpot_s > max_tpot_s:
                missed.append((ttft_s, tpot_s))
                continue
            total_s = ttft_s + tpot_s * expected_output_tokens(candidate, request)
            if total_s < best_s:
                best, best_s = candidate, total_s
        if best is not None:
            return Choice(best, "cost")
        return _unmeetable(missed, max_ttft_s, max_tpot_s)


def _unmeetable(
    missed: list[tuple[float, float]], max_ttft_s: float, max_tpot_s: float
) -> Unmeetable:
    """The refusal, told by the candidate that would miss its latencies by the least."""

    def excess(prediction: tuple[float, float]) -> float:
        return max(prediction[0] / max_ttft_s, prediction[1] / max_tpot_s)

    ttft_s, tpot_s = min(missed, key=excess)
    is_ttft = ttft_s / max_ttft_s >= tpot_s / max_tpot_s
    return Unmeetable(
        reason="ttft" if is_ttft else "tpot",
        predicted_ttft_s=ttft_s,
        predicted_tpot_s=tpot_s,
        retry_after_s=max(1.0, ttft_s - max_ttft_s) if is_ttft else 1.0,
    )
