"""The panels about pools: where prompts are computed, and what hand-offs between pools cost."""

from grafana import ALL_MODELS, Panel, quantiles, rate


def pools() -> list[Panel]:
    """Prefill and decode replicas as one service."""
    running = f"sum by (pool) (vllm:num_requests_running{{{ALL_MODELS}}})"
    active = f'pagoda:replica_state{{{ALL_MODELS}, state="active"}}'
    usable = f"sum by (pool) (max by (replica, pool) ({active}))"
    return [
        Panel("Usable replicas, by pool", [("{{pool}}", usable)]),
        Panel("Running requests, by pool", [("{{pool}}", running)], stacked=True),
        Panel(
            "Where prompts are computed, by reason",
            [("{{reason}}", rate("pagoda:disaggregation_decisions_total", by="reason"))],
            stacked=True,
        ),
        Panel(
            "What came of hand-offs",
            [("{{outcome}}", rate("pagoda:handoff_results_total", by="outcome"))],
            stacked=True,
        ),
        Panel("First token to adopted blocks", quantiles("pagoda:handoff_exposed_seconds"), "s"),
        Panel(
            "Hand-offs, as replicas count them",
            [("{{outcome}}", rate("pagoda:handoffs_total", by="outcome"))],
        ),
        Panel(
            "What publishing and adopting took",
            [("{{part}}", rate("pagoda:handoff_seconds_total", by="part"))],
            "s",
        ),
        Panel("Bytes handed over", [("", rate("pagoda:handoff_bytes_total"))], "Bps"),
        Panel(
            "Promised room, held requests",
            [
                ("promised", f"sum(pagoda:promised_handoffs{{{ALL_MODELS}}})"),
                ("held", f"sum(pagoda:held_requests{{{ALL_MODELS}}})"),
            ],
        ),
    ]
