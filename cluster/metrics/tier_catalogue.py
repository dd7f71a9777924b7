"""Defines the metrics of the memory below the device's blocks: host memory and the block store.

A name that is not defined here cannot be counted; the catalogue takes these up.
"""

from cluster.metrics.metric import Metric, count, gauge

_TIERS = (
    count(
        "replica",
        "pagoda:tier_hit_tokens",
        "tokens",
        "Known tokens found computed, by the tier that had them: device, host or store.",
        "tier",
    ),
    count(
        "replica",
        "pagoda:swaps_without_room",
        "preemptions",
        "Preemptions that would have been swaps, had host memory had room.",
    ),
    count(
        "replica",
        "pagoda:moved_blocks",
        "blocks",
        "Blocks copied from the device to host memory (out) and back (in).",
        "direction",
    ),
    count(
        "replica",
        "pagoda:swapped_blocks",
        "blocks",
        "Blocks that preempted requests left in host memory.",
    ),
    count(
        "replica",
        "pagoda:move_seconds",
        "seconds",
        "What moving blocks took: between device and host memory (copy), from the store (fetch).",
        "move",
    ),
    count(
        "replica",
        "pagoda:estimated_seconds",
        "seconds",
        "Both sides (move, recompute) of every decision about a preempted request (swap) and about "
        "a prefix in the store (fetch).",
        *("decision", "side"),
    ),
    gauge(
        "replica",
        "pagoda:host_slots",
        "blocks",
        "Slots of host memory: free, cached (may go), pinned.",
        "kind",
    ),
    count(
        "replica",
        "pagoda:dropped_host_blocks",
        "blocks",
        "Blocks that went from host memory to make room.",
    ),
    count(
        "replica",
        "pagoda:handoffs",
        "requests",
        "Hand-offs of a prefill replica (published, or unpublished because they failed) and of a "
        "decode replica (adopted, or refused and computed there).",
        "outcome",
    ),
    count(
        "replica",
        "pagoda:handoff_seconds",
        "seconds",
        "What hand-offs took: from the first token to the published table (publish), from the "
        "request's arrival to its adopted blocks (adopt).",
        "part",
    ),
    count(
        "replica",
        "pagoda:handoff_bytes",
        "bytes",
        "Bytes of K and V that decode replicas fetched to adopt requests.",
    ),
    count(
        "replica",
        "pagoda:session_fates",
        "turns",
        "What became of a session's blocks at the end of a turn: keep, swap or discard.",
        "fate",
    ),
)

_STORE = (
    count(
        "replica",
        "pagoda:store_blocks",
        "blocks",
        "Blocks by what became of them: offered, stored, present, dropped (the store was behind), "
        "full, failed, hit, missed, trimmed (by us, for room).",
        "outcome",
    ),
    count(
        "replica",
        "pagoda:store_lookups",
        "requests",
        "Questions to the store for a waiting request, by how they went on: asked, fetched, short "
        "(less came than was found), declined (recompute was cheaper), late.",
        "outcome",
    ),
    count(
        "replica",
        "pagoda:store_bytes",
        "bytes",
        "Bytes of blocks: raw (given to be written), sent (of those, after compression), fetched.",
        "kind",
    ),
    count(
        "replica",
        "pagoda:store_errors",
        "errors",
        "Failures and corrupt values of the store, by kind.",
        "kind",
    ),
    count(
        "replica",
        "pagoda:store_short_circuits",
        "calls",
        "Calls that did not go to the store because it had just failed several times.",
    ),
    count(
        "replica",
        "pagoda:store_expired_leases",
        "leases",
        "Pins in the store that ended because nobody renewed them.",
    ),
    gauge(
        "replica",
        "pagoda:store_is_away",
        "",
        "1 while the store is not asked because it fails, else 0.",
    ),
    gauge("replica", "pagoda:store_leases", "leases", "Pins in the store that are held now."),
    gauge(
        "replica",
        "pagoda:store_bytes_per_second",
        "bytes per second",
        "Measured speed of late, of writes (put) and reads (fetch).",
        "direction",
    ),
    gauge(
        "replica",
        "pagoda:store_round_trip_seconds",
        "seconds",
        "Mean time of late of a question to the store.",
    ),
    gauge(
        "replica",
        "pagoda:store_compression_error",
        "",
        "Largest error bound of a compressed block, in the units of K and V.",
    ),
)

TIER_METRICS: tuple[Metric, ...] = (*_TIERS, *_STORE)
