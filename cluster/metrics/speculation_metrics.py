"""Shows what an engine's guesses have gained as metrics of its replica."""

from cluster.metrics.figures import Figures
from replicas.speculation.stats import SpeculationStats


def show_speculation(figures: Figures, stats: SpeculationStats) -> None:
    """What guessing has tried and gained; totals over all engine cores of the replica."""
    counter = figures.counter
    counter("vllm:spec_decode_num_drafts").advance_to(stats.num_drafts_total)
    counter("vllm:spec_decode_num_draft_tokens").advance_to(stats.num_draft_tokens_total)
    counter("vllm:spec_decode_num_accepted_tokens").advance_to(stats.num_accepted_tokens_total)
    for position, total in enumerate(stats.accepted_per_position):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        counter(name, str(position)).advance_to(total)
