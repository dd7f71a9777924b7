"""What the tiers below the device's blocks hold and have done, for stats, metrics and decisions."""

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class TierStats:
    """A snapshot. Names with `total` only ever grow; times in seconds.

    num_host_slots, num_held_host_slots, num_pinned_host_slots: the host tier, and what of it holds
    a block, and what of that must stay.
    host_hit_tokens_total, store_hit_tokens_total: found there and not computed again. Hits of the
    device are the engine's hit tokens less both.
    swaps_total, recomputes_total: preemptions by fate. swapped_blocks_total: blocks that preempted
    requests left in host memory. no_room_swaps_total: would have been swapped, had there been room.
    copied_out_blocks_total, copied_in_blocks_total: all moves between device and host memory.
    copy_s_total: what they took. swap_s_estimated_total, swap_recompute_s_estimated_total: both
    sides of every decision of a preemption.
    dropped_host_blocks_total: went to make room in the host tier.
    offered_blocks_total, stored_blocks_total: for the store to write, and acknowledged by it.
    lookups_total, lookups_late_total: questions to the store, and those whose answer, or the blocks
    after it, did not come in time. fetches_total, fetched_blocks_total: and what they brought.
    short_fetches_total: brought less than was promised. declined_fetches_total: recompute was
    cheaper. fetch_s_total: what fetches took. fetch_s_estimated_total,
    fetch_recompute_s_estimated_total: both sides of every decision about a fetch.
    published_handoffs_total, unpublished_handoffs_total: prompts computed for another engine, and
    those of them that it could not have. handoff_publish_s_total: from their first tokens to their
    tables. adopted_handoffs_total, refused_handoffs_total: the other direction.
    handoff_adopt_s_total, handoff_adopted_bytes_total: what adopting took and brought.
    sessions_kept_total, sessions_swapped_total, sessions_discarded_total: fates of the blocks of
    sessions that went idle.
    """

    num_host_slots: int = 0
    num_held_host_slots: int = 0
    num_pinned_host_slots: int = 0
    host_hit_tokens_total: int = 0
    store_hit_tokens_total: int = 0
    swaps_total: int = 0
    recomputes_total: int = 0
    swapped_blocks_total: int = 0
    no_room_swaps_total: int = 0
    copied_out_blocks_total: int = 0
    copied_in_blocks_total: int = 0
    copy_s_total: float = 0.0
    swap_s_estimated_total: float = 0.0
    swap_recompute_s_estimated_total: float = 0.0
    dropped_host_blocks_total: int = 0
    offered_blocks_total: int = 0
    stored_blocks_total: int = 0
    lookups_total: int = 0
    lookups_late_total: int = 0
    fetches_total: int = 0
    fetched_blocks_total: int = 0
    short_fetches_total: int = 0
    declined_fetches_total: int = 0
    fetch_s_total: float = 0.0
    fetch_s_estimated_total: float = 0.0
    fetch_recompute_s_estimated_total: float = 0.0
    published_handoffs_total: int = 0
    unpublished_handoffs_total: int = 0
    handoff_publish_s_total: float = 0.0
    adopted_handoffs_total: int = 0
    refused_handoffs_total: int = 0
    handoff_adopt_s_total: float = 0.0
    handoff_adopted_bytes_total: int = 0
    sessions_kept_total: int = 0
    sessions_swapped_total: int = 0
    sessions_discarded_total: int = 0


TIER_TOTALS = tuple(one.name for one in fields(TierStats) if one.name.endswith("_total"))


@dataclass(slots=True)
class TierTotals:
    """The counts behind the totals of a TierStats, by their names."""

    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIER_TOTALS, 0))

    def add(self, name: str, amount: float = 1) -> None:
        """Count `amount` more under a name of TierStats without its `_total`."""
        self.counts[f"{name}_total"] += amount

    def snapshot(self, *, num_slots: int, num_held: int, num_pinned: int) -> TierStats:
        """Everything as it is now."""
        return TierStats(num_slots, num_held, num_pinned, **self.counts)  # type: ignore[arg-type]
