"""Defines the metrics of pools as gateways see them: shared requests, and those that are held.

What the replicas count of the same hand-offs is in cluster.metrics.tier_catalogue.
"""

from cluster.metrics.metric import Metric, count, gauge

_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0),
)

PAIR_METRICS: tuple[Metric, ...] = (
    count(
        "gateway",
        "pagoda:disaggregation_decisions",
        "requests",
        "Requests that met a prefill pool, by what decided where their prompt is computed.",
        "reason",
    ),
    count(
        "gateway",
        "pagoda:handoff_results",
        "requests",
        "What came of requests that were to be handed over: adopted, or why the decode side "
        "computed the prompt.",
        "outcome",
    ),
    Metric(
        "pagoda:handoff_exposed_seconds",
        "histogram",
        "gateway",
        "seconds",
        "Time from a request's first token until the decode side had adopted its blocks.",
        buckets=_SECONDS,
        moments="adopted - first_token_in",
    ),
    gauge(
        "gateway",
        "pagoda:promised_handoffs",
        "requests",
        "Requests that hold room in the decode pool which no replica counts yet.",
    ),
    gauge(
        "gateway",
        "pagoda:held_requests",
        "requests",
        "Requests that wait for the first replica of an idle model.",
    ),
)
