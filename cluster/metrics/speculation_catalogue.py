"""Defines the metrics of speculative decoding; the catalogue takes these up."""

from cluster.metrics.metric import Metric, count

SPECULATION_METRICS: tuple[Metric, ...] = (
    count(
        "replica",
        "vllm:spec_decode_num_drafts",
        "drafts",
        "Verifications of one request's guessed tokens in one step.",
    ),
    count(
        "replica",
        "vllm:spec_decode_num_draft_tokens",
        "tokens",
        "Guessed tokens that a step verified.",
    ),
    count(
        "replica",
        "vllm:spec_decode_num_accepted_tokens",
        "tokens",
        "Guessed tokens that were right.",
    ),
    count(
        "replica",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "tokens",
        "Right ones by their place among the guesses of their request, the first being 0.",
        "position",
    ),
)
