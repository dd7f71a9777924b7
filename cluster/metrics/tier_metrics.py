"""Shows what an engine's tiers and a replica's block store have done as metrics of the replica."""

from cluster.metrics.figures import Figures
from kvstore.store_stats import StoreStats
from replicas.engine_stats import EngineStats

# (metric, label values) of each total of a TierStats, by its name without `_total`.
_TIER_TOTALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "host_hit_tokens": ("pagoda:tier_hit_tokens", ("host",)),
    "store_hit_tokens": ("pagoda:tier_hit_tokens", ("store",)),
    "swaps": ("pagoda:preemption_decisions", ("swap",)),
    "recomputes": ("pagoda:preemption_decisions", ("recompute",)),
    "no_room_swaps": ("pagoda:swaps_without_room", ()),
    "swapped_blocks": ("pagoda:swapped_blocks", ()),
    "copied_out_blocks": ("pagoda:moved_blocks", ("out",)),
    "copied_in_blocks": ("pagoda:moved_blocks", ("in",)),
    "copy_s": ("pagoda:move_seconds", ("copy",)),
    "fetch_s": ("pagoda:move_seconds", ("fetch",)),
    "swap_s_estimated": ("pagoda:estimated_seconds", ("swap", "move")),
    "swap_recompute_s_estimated": ("pagoda:estimated_seconds", ("swap", "recompute")),
    "fetch_s_estimated": ("pagoda:estimated_seconds", ("fetch", "move")),
    "fetch_recompute_s_estimated": ("pagoda:estimated_seconds", ("fetch", "recompute")),
    "dropped_host_blocks": ("pagoda:dropped_host_blocks", ()),
    "offered_blocks": ("pagoda:store_blocks", ("offered",)),
    "lookups": ("pagoda:store_lookups", ("asked",)),
    "lookups_late": ("pagoda:store_lookups", ("late",)),
    "fetches": ("pagoda:store_lookups", ("fetched",)),
    "short_fetches": ("pagoda:store_lookups", ("short",)),
    "declined_fetches": ("pagoda:store_lookups", ("declined",)),
    "published_handoffs": ("pagoda:handoffs", ("published",)),
    "unpublished_handoffs": ("pagoda:handoffs", ("unpublished",)),
    "adopted_handoffs": ("pagoda:handoffs", ("adopted",)),
    "refused_handoffs": ("pagoda:handoffs", ("refused",)),
    "handoff_publish_s": ("pagoda:handoff_seconds", ("publish",)),
    "handoff_adopt_s": ("pagoda:handoff_seconds", ("adopt",)),
    "handoff_adopted_bytes": ("pagoda:handoff_bytes", ()),
    "sessions_kept": ("pagoda:session_fates", ("keep",)),
    "sessions_swapped": ("pagoda:session_fates", ("swap",)),
    "sessions_discarded": ("pagoda:session_fates", ("discard",)),
}
_STORE_OUTCOMES = ("stored", "present", "dropped", "full", "failed", "missed", "trimmed", "hit")
_STORE_BYTES = {"raw": "raw_put_bytes", "sent": "put_bytes", "fetched": "fetched_bytes"}


def show_tiers(figures: Figures, stats: EngineStats) -> None:
    """What lies in host memory, and what was moved and decided."""
    tiers = stats.tiers
    for total, (metric, labels) in _TIER_TOTALS.items():
        figures.counter(metric, *labels).advance_to(getattr(tiers, f"{total}_total"))
    below = tiers.host_hit_tokens_total + tiers.store_hit_tokens_total
    figures.counter("pagoda:tier_hit_tokens", "device").advance_to(stats.hit_tokens_total - below)
    num_free = tiers.num_host_slots - tiers.num_held_host_slots
    num_cached = tiers.num_held_host_slots - tiers.num_pinned_host_slots
    figures.set("pagoda:host_slots", num_free, "free")
    figures.set("pagoda:host_slots", num_cached, "cached")
    figures.set("pagoda:host_slots", tiers.num_pinned_host_slots, "pinned")


def show_store(figures: Figures, stats: StoreStats) -> None:
    """What the block store's client says; totals over all clients that this replica had."""
    for outcome in _STORE_OUTCOMES:
        counter = figures.counter("pagoda:store_blocks", outcome)
        counter.advance_to(getattr(stats, f"{outcome}_blocks"))
    for kind, name in _STORE_BYTES.items():
        figures.counter("pagoda:store_bytes", kind).advance_to(getattr(stats, name))
    for kind, num_errors in stats.errors.items():
        figures.counter("pagoda:store_errors", kind).advance_to(num_errors)
    figures.counter("pagoda:store_short_circuits").advance_to(stats.short_circuits)
    figures.counter("pagoda:store_expired_leases").advance_to(stats.expired_leases)
    figures.set("pagoda:store_is_away", float(stats.is_open))
    figures.set("pagoda:store_leases", stats.num_leases)
    figures.set("pagoda:store_bytes_per_second", stats.put_bytes_per_s or 0.0, "put")
    figures.set("pagoda:store_bytes_per_second", stats.fetch_bytes_per_s or 0.0, "fetch")
    figures.set("pagoda:store_round_trip_seconds", stats.round_trip_s or 0.0)
    figures.set("pagoda:store_compression_error", stats.compression_error)
