"""One snapshot per step of what the engine holds and did, for router, metrics and page."""

from dataclasses import dataclass

from replicas.memory.tier_stats import TierStats
from replicas.speculation.stats import SpeculationStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The state after a step, and totals since the engine started. Times in seconds.

    Gauges describe the moment after the step; names with `total` only ever grow.

    max_num_seqs: the cap on running requests; occupancy is rows of the last step / cap.
    num_free_blocks counts cached ones too: both can be handed out. num_shared_blocks are held by
    more than one request. num_held_slots and num_filled_slots: slots of held blocks, and those of
    them that hold a token, so waste is 1 - filled / held.
    num_waiting_tokens: prompt tokens of the line. num_prompt_tokens_left: those of running requests
    that no step has taken yet.
    num_low_watermark_steps_total: steps that began below the watermark of free blocks.
    discarded_tokens_total: computed tokens lost by preemption.
    forks_total: choices that began with the blocks of another choice of their request.
    overtaking_prefills_total: prompts computed between the layers of a step under way.
    copied_blocks_total: blocks that were copied before a write, since others could read them.
    plan_s, run_s, deliver_s: parts of the last step; plan covers scheduler and allocator.
    tiers: host memory and the store below; stays with the replica, whose metrics tell of it.
    speculation: what guessing tokens has tried and gained; likewise.
    """

    step: int = 0
    at: float = 0.0
    max_num_seqs: int = 0
    num_blocks: int = 0
    block_size: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_shared_blocks: int = 0
    num_held_slots: int = 0
    num_filled_slots: int = 0
    num_rows: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    plan_s: float = 0.0
    run_s: float = 0.0
    deliver_s: float = 0.0
    prompt_tokens_total: int = 0
    computed_prompt_tokens_total: int = 0
    hit_tokens_total: int = 0
    generated_tokens_total: int = 0
    discarded_tokens_total: int = 0
    preemptions_total: int = 0
    finished_total: int = 0
    cancelled_total: int = 0
    refused_total: int = 0
    num_low_watermark_steps_total: int = 0
    tiers: TierStats = TierStats()
    speculation: SpeculationStats = SpeculationStats()
    forks_total: int = 0
    copied_blocks_total: int = 0
    num_prompt_tokens_left: int = 0
    overtaking_prefills_total: int = 0

    @property
    def occupancy(self) -> float:
        """Share of the running-request cap that the last step used, in [0, 1]."""
        return self.num_rows / self.max_num_seqs if self.max_num_seqs else 0.0
