"""Predicts what latency a request would find on a replica, from measured pace and present load.

TTFT = the longest of what stands in its way (prompts to be computed first, places, blocks), then
its own prefix: fetched where that is possible, computed where not, and one step. TPOT = a step with
one more row, stretched by the share of the time that prefills take. Lecture 10, 10.6, has the
parts; DistServe and Mooncake choose replicas by such sums.
"""

from router.routing_policy import Candidate, RoutingRequest


def predicted_ttft_s(
    candidate: Candidate, request: RoutingRequest, *, num_hit_blocks: int, num_fetch_blocks: int
) -> float:
    """Seconds until the first token if the request went there now; 0.0 without a measured pace.

    num_hit_blocks: of its prefix, those that the replica holds. num_fetch_blocks: further ones
    that it could fetch instead of computing them.
    """
    status, pace = candidate.status, candidate.pace
    hit_tokens = num_hit_blocks * status.block_size
    fetch_tokens = num_fetch_blocks * status.block_size
    # The last prompt token is always computed: its logits choose the first token.
    missing_tokens = max(1, request.prompt_tokens - hit_tokens)
    own_s = missing_tokens * pace.prefill_token_s
    if fetch_tokens:
        rest_tokens = max(1, missing_tokens - fetch_tokens)
        fetched_s = fetch_tokens * status.fetch_token_s + rest_tokens * pace.prefill_token_s
        own_s = min(own_s, fetched_s)
    queued_tokens = status.queued_prompt_tokens + candidate.reserved_prompt_tokens
    queue_s = queued_tokens * pace.prefill_token_s
    room_s = _wait_for_room_s(candidate, request, num_hit_blocks)
    return max(queue_s, room_s) + own_s + pace.decode_base_s


def predicted_tpot_s(candidate: Candidate) -> float:
    """Seconds between its tokens if the request went there now; 0.0 without a measured pace."""
    status, pace = candidate.status, candidate.pace
    num_rows = status.num_running + status.num_waiting + candidate.num_reserved + 1
    if 0 < status.max_num_seqs < num_rows:
        num_rows = status.max_num_seqs
    step_s = pace.decode_base_s + pace.decode_row_s * num_rows
    return step_s / (1.0 - pace.prefill_share)


def expected_output_tokens(candidate: Candidate, request: RoutingRequest) -> float:
    """How long the answer will probably be: max_tokens is a bound that few answers reach."""
    mean = candidate.pace.mean_output_tokens
    return min(mean, request.max_output_tokens) if mean else request.max_output_tokens


def _wait_for_room_s(candidate: Candidate, request: RoutingRequest, num_hit_blocks: int) -> float:
    """Seconds until running requests have left it a place and blocks."""
    status = candidate.status
    num_ahead = status.num_running + status.num_waiting + candidate.num_reserved
    share = 0.0
    if 0 < status.max_num_seqs <= num_ahead:
        share = (num_ahead + 1 - status.max_num_seqs) / status.max_num_seqs
    if status.num_blocks and status.block_size:
        wanted_tokens = request.prompt_tokens + candidate.reserved_prompt_tokens
        num_wanted = wanted_tokens // status.block_size + 1 - num_hit_blocks
        num_short = num_wanted - status.num_free_blocks
        if num_short > 0:
            num_held = max(1, status.num_blocks - status.num_free_blocks)
            share = max(share, num_short / num_held)
    if not share:
        return 0.0
    # Requests are on average half through, so in the time of one answer two generations end.
    answer_s = candidate.pace.mean_output_tokens * predicted_tpot_s(candidate)
    return share * answer_s
