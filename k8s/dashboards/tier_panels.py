"""The panels about the memory below the device's blocks: host memory and the block store."""

from grafana import ONE_REPLICA, Panel, rate

_CHOSEN = f"{{{ONE_REPLICA}}}"


def host_memory() -> list[Panel]:
    """What host memory holds, what moves, and what was decided."""
    return [
        Panel(
            "Tokens found, by tier",
            [("{{tier}}", rate("pagoda:tier_hit_tokens_total", ONE_REPLICA, "tier"))],
            stacked=True,
        ),
        Panel("Slots", [("{{kind}}", f"pagoda:host_slots{_CHOSEN}")], stacked=True),
        Panel(
            "Blocks moved",
            [
                ("{{direction}}", rate("pagoda:moved_blocks_total", ONE_REPLICA, "direction")),
                ("swapped", rate("pagoda:swapped_blocks_total", ONE_REPLICA)),
                ("dropped", rate("pagoda:dropped_host_blocks_total", ONE_REPLICA)),
                ("swaps without room", rate("pagoda:swaps_without_room_total", ONE_REPLICA)),
            ],
        ),
        Panel(
            "Estimates of both sides",
            [
                (
                    "{{decision}} {{side}}",
                    rate("pagoda:estimated_seconds_total", ONE_REPLICA, "decision, side"),
                )
            ],
            "s",
        ),
        Panel(
            "What moves took",
            [("{{move}}", rate("pagoda:move_seconds_total", ONE_REPLICA, "move"))],
            "s",
        ),
        Panel(
            "Sessions that paused",
            [("{{fate}}", rate("pagoda:session_fates_total", ONE_REPLICA, "fate"))],
            stacked=True,
        ),
    ]


def store() -> list[Panel]:
    """The block store, as this replica's client sees it."""
    return [
        Panel(
            "Blocks", [("{{outcome}}", rate("pagoda:store_blocks_total", ONE_REPLICA, "outcome"))]
        ),
        Panel(
            "Questions for waiting requests",
            [("{{outcome}}", rate("pagoda:store_lookups_total", ONE_REPLICA, "outcome"))],
        ),
        Panel(
            "Bytes",
            [("{{kind}}", rate("pagoda:store_bytes_total", ONE_REPLICA, "kind"))],
            "Bps",
        ),
        Panel(
            "Failures",
            [
                ("{{kind}}", rate("pagoda:store_errors_total", ONE_REPLICA, "kind")),
                ("not asked", rate("pagoda:store_short_circuits_total", ONE_REPLICA)),
                ("expired pins", rate("pagoda:store_expired_leases_total", ONE_REPLICA)),
            ],
        ),
        Panel(
            "Speed",
            [("{{direction}}", f"pagoda:store_bytes_per_second{_CHOSEN}")],
            "Bps",
        ),
        Panel(
            "Round trip",
            [("", f"pagoda:store_round_trip_seconds{_CHOSEN}")],
            "s",
        ),
        Panel(
            "Away, and pins held",
            [
                ("away", f"pagoda:store_is_away{_CHOSEN}"),
                ("pins", f"pagoda:store_leases{_CHOSEN}"),
            ],
            width=12,
        ),
        Panel(
            "Error bound of compression",
            [("", f"pagoda:store_compression_error{_CHOSEN}")],
            width=12,
        ),
    ]
