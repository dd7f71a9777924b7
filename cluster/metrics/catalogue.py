"""Defines every metric in one place: its name, kind, unit, labels, buckets and meaning.

Names of vLLM are kept wherever the meaning is the same, so that dashboards and autoscalers made
for it work; what it lacks bears the prefix pagoda. A name that is not defined here cannot be
counted, and docs/metrics.md is made from this file.
"""

from cluster.metrics.metric import IDENTITY_LABELS, Kind, Metric, Origin
from cluster.metrics.metric import count as _count
from cluster.metrics.metric import gauge as _gauge
from cluster.metrics.pair_catalogue import PAIR_METRICS
from cluster.metrics.speculation_catalogue import SPECULATION_METRICS
from cluster.metrics.tier_catalogue import TIER_METRICS

__all__ = ["CATALOGUE", "IDENTITY_LABELS", "METRICS", "Kind", "Metric", "Origin"]

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0),
    *(1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 7680.0),
)
GAP_SECONDS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03),
    *(0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 80.0),
)
STEP_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TOKENS = tuple(float(m * 10**power) for power in range(6) for m in (1, 2, 5))
STEP_TOKENS = (1.0, 2.0, 4.0, *(float(2**power) for power in range(3, 15)))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 128.0)
PREEMPTIONS = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0)
RATIOS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def _span(name: str, help: str, moments: str, *labels: str) -> Metric:
    return Metric(name, "histogram", "gateway", "seconds", help, labels, SECONDS, moments)


def _sizes(name: str, help: str, buckets: tuple[float, ...] = TOKENS) -> Metric:
    unit = "tokens" if buckets is TOKENS else ""
    return Metric(name, "histogram", "gateway", unit, help, buckets=buckets)


# What a client feels, observed by the gateway that serves it. "Request" means one choice.
_REQUESTS = (
    _span(
        "vllm:time_to_first_token_seconds",
        "Time from a request's arrival at the gateway to its first token there (TTFT).",
        "first_token_out - arrived",
    ),
    Metric(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "gateway",
        "seconds",
        "Time between neighbouring deliveries of one request; a delivery is a token, or several "
        "that a busy gateway found waiting (ITL).",
        buckets=GAP_SECONDS,
        moments="token_out[i] - token_out[i-1]",
    ),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "gateway",
        "seconds",
        "Mean time per output token after the first, of each request with two or more (TPOT).",
        buckets=GAP_SECONDS,
        moments="(last_token_out - first_token_out) / (output tokens - 1)",
    ),
    _span(
        "vllm:e2e_request_latency_seconds",
        "Time from a request's arrival at the gateway to its end there.",
        "ended_out - arrived",
    ),
    _span(
        "vllm:request_queue_time_seconds",
        "Time that a request waited in the engine's line for blocks and a slot.",
        "scheduled - admitted",
    ),
    _span(
        "vllm:request_prefill_time_seconds",
        "Time from a request's first step to its first token, in the engine.",
        "first_token - scheduled",
    ),
    _span(
        "vllm:request_decode_time_seconds",
        "Time from a request's first token to its end, in the engine.",
        "finished - first_token",
    ),
    _span(
        "vllm:request_inference_time_seconds",
        "Time from a request's first step to its end, in the engine.",
        "finished - scheduled",
    ),
    _span(
        "pagoda:ttft_part_seconds",
        "The parts that a time to first token is the sum of: gateway (with the way there and "
        "back), scheduling_delay, queueing, prefill.",
        "see the ledger of the first token",
        "part",
    ),
    _sizes("vllm:request_prompt_tokens", "Prompt tokens of each request."),
    _sizes("vllm:request_generation_tokens", "Output tokens of each request that ended."),
    _sizes(
        "vllm:request_max_num_generation_tokens",
        "Output tokens of the longest choice of each prompt.",
    ),
    _sizes("vllm:request_params_max_tokens", "The max_tokens of each prompt."),
    _sizes("vllm:request_params_n", "Choices asked for with each prompt.", CHOICES),
    _sizes("vllm:request_num_preemptions", "Preemptions of each request.", PREEMPTIONS),
    _sizes(
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens of each request that were not found computed.",
    ),
    _count(
        "gateway",
        "vllm:request_success",
        "requests",
        "Requests that ended: stop, length, abort (the client left) or error.",
        "finished_reason",
    ),
    _count(
        "gateway",
        "vllm:admission_rejections",
        "calls",
        "Calls turned away before they were computed, by reason.",
        "reason",
    ),
    _count("gateway", "pagoda:cancelled_calls", "calls", "Calls whose client left before the end."),
)

# The gateway itself, and how it sees the replicas.
_GATEWAY = (
    _gauge("gateway", "pagoda:open_calls", "calls", "Generation calls that are being answered."),
    _count(
        "gateway", "pagoda:http_responses", "responses", "HTTP responses by status code.", "status"
    ),
    Metric(
        "pagoda:gateway_loop_lag_seconds",
        "histogram",
        "gateway",
        "seconds",
        "How late the gateway's event loop woke up from a short sleep.",
        buckets=LAG_SECONDS,
        moments="woke - due",
    ),
    _gauge("gateway", "pagoda:gateway_tasks", "tasks", "Tasks of the gateway's event loop."),
    _count(
        "gateway",
        "pagoda:router_decisions",
        "decisions",
        "Choices of a replica, by what decided, or by why there was no choice.",
        "reason",
    ),
    _count(
        "gateway",
        "pagoda:routed_prompt_blocks",
        "blocks",
        "Full blocks of the prompts that were sent to a replica by a policy that looks at hits.",
    ),
    _count(
        "gateway",
        "pagoda:routed_hit_blocks",
        "blocks",
        "Those of them that the chosen replica was believed to hold.",
    ),
    _gauge(
        "gateway",
        "pagoda:prefix_index_blocks",
        "blocks",
        "Distinct blocks of all prefix caches that the gateway knows of.",
    ),
    _gauge(
        "gateway",
        "pagoda:prefix_index_inexact_replicas",
        "replicas",
        "Replicas whose prefix cache the gateway does not know exactly.",
    ),
    _count(
        "gateway",
        "pagoda:prefix_index_repairs",
        "repairs",
        "Gaps and resets in what replicas told, and snapshots that repaired them, by kind.",
        "kind",
    ),
    _count(
        "gateway",
        "pagoda:prefix_index_dropped_blocks",
        "blocks",
        "Blocks that were not remembered since max_index_blocks was reached.",
    ),
    _count(
        "gateway",
        "pagoda:failovers",
        "requests",
        "Streams that left a replica (lost, hung, draining) or were given up, by reason.",
        "reason",
    ),
    _gauge(
        "gateway",
        "pagoda:replica_state",
        "",
        "1 for the state in which the gateway sees the replica, 0 for the others.",
        *("replica", "pool", "state"),
    ),
    _gauge(
        "gateway",
        "pagoda:replica_stuck_seconds",
        "seconds",
        "For how long the replica has had work without a step; 0 while it advances.",
        *("replica", "pool"),
    ),
    _count(
        "gateway",
        "pagoda:token_stream_reconnects",
        "breaks",
        "Broken token streams that came back without a gap.",
    ),
    _count(
        "gateway",
        "pagoda:token_stream_losses",
        "breaks",
        "Token streams that ended with what was open on them.",
    ),
)

# The engine, as its replica counts it. Totals go on when an engine core is replaced.
_ENGINE = (
    _gauge("replica", "vllm:num_requests_running", "requests", "Requests that hold a batch slot."),
    _gauge("replica", "vllm:num_requests_waiting", "requests", "Requests in the waiting line."),
    _gauge(
        "replica", "vllm:kv_cache_usage_perc", "ratio", "Share of KV blocks that requests hold."
    ),
    _gauge(
        "replica",
        "vllm:cache_config_info",
        "",
        "Always 1; the labels say how the KV cache is laid out.",
        *("block_size", "num_gpu_blocks", "cache_dtype"),
    ),
    _count("replica", "vllm:prompt_tokens", "tokens", "Prompt tokens of scheduled requests."),
    _count("replica", "vllm:generation_tokens", "tokens", "Tokens sampled."),
    _count(
        "replica", "vllm:prompt_tokens_cached", "tokens", "Prompt tokens that were found computed."
    ),
    _count(
        "replica",
        "vllm:prefix_cache_queries",
        "tokens",
        "Prompt tokens looked up in the prefix cache.",
    ),
    _count(
        "replica", "vllm:prefix_cache_hits", "tokens", "Prompt tokens found in the prefix cache."
    ),
    _count("replica", "vllm:num_preemptions", "preemptions", "Preemptions of running requests."),
    Metric(
        "vllm:iteration_tokens_total",
        "histogram",
        "replica",
        "tokens",
        "Tokens computed by each step.",
        buckets=STEP_TOKENS,
    ),
    Metric(
        "pagoda:batch_occupancy_ratio",
        "histogram",
        "replica",
        "ratio",
        "Rows of each step over max_num_seqs.",
        buckets=RATIOS,
    ),
    Metric(
        "pagoda:step_seconds",
        "histogram",
        "replica",
        "seconds",
        "Parts of each step: plan (scheduler and allocator), run (the model), deliver.",
        labels=("part",),
        buckets=STEP_SECONDS,
        moments="planned - began, computed - started, delivered - computed",
    ),
    _count(
        "replica",
        "pagoda:computed_prompt_tokens",
        "tokens",
        "Prompt tokens computed, those computed again after a preemption included.",
    ),
    _count(
        "replica",
        "pagoda:discarded_tokens",
        "tokens",
        "Computed tokens lost by preemption.",
    ),
    _count(
        "replica",
        "pagoda:preemption_decisions",
        "preemptions",
        "What was done with the blocks of preempted requests.",
        "decision",
    ),
    _count(
        "replica",
        "pagoda:low_watermark_steps",
        "steps",
        "Steps that began with fewer free blocks than the watermark.",
    ),
    _count(
        "replica",
        "pagoda:forks",
        "choices",
        "Choices that began with the blocks of another choice of their request.",
    ),
    _count(
        "replica",
        "pagoda:copied_blocks",
        "blocks",
        "Blocks copied before a write because others could read them.",
    ),
    _count(
        "replica",
        "pagoda:overtaking_prefills",
        "prompts",
        "Prompts computed between the layers of a step that was under way when they came in.",
    ),
    _count(
        "replica",
        "pagoda:engine_requests_ended",
        "requests",
        "Requests that left the engine: finished, cancelled or refused.",
        "how",
    ),
    _gauge(
        "replica",
        "pagoda:kv_blocks",
        "blocks",
        "KV blocks: empty, cached (free, but findable), private, shared by several requests.",
        "kind",
    ),
    _gauge(
        "replica",
        "pagoda:kv_waste_ratio",
        "ratio",
        "Share of the slots of held blocks that hold no token.",
    ),
    _gauge("replica", "pagoda:waiting_tokens", "tokens", "Known tokens of all waiting requests."),
)

# The process around the engine.
_REPLICA = (
    _gauge("replica", "pagoda:replica_open_requests", "requests", "Requests the replica has open."),
    _gauge(
        "replica",
        "pagoda:outstanding_tokens",
        "tokens",
        "Prompt and output tokens that the open requests may still need.",
    ),
    _count(
        "replica",
        "pagoda:token_stream_coalesced_steps",
        "steps",
        "Steps that were joined with one a gateway had not taken yet.",
    ),
    _count(
        "replica",
        "pagoda:engine_core_restarts",
        "restarts",
        "Engine cores started in place of one that died.",
    ),
    _gauge(
        "replica",
        "pagoda:startup_phase_seconds",
        "seconds",
        "Time that each phase of the newest engine core's start took.",
        "phase",
    ),
    Metric(
        "pagoda:replica_loop_lag_seconds",
        "histogram",
        "replica",
        "seconds",
        "How late the replica's event loop woke up from a short sleep.",
        buckets=LAG_SECONDS,
        moments="woke - due",
    ),
    _gauge("replica", "pagoda:replica_tasks", "tasks", "Tasks of the replica's event loop."),
)

CATALOGUE: tuple[Metric, ...] = (
    *(*_REQUESTS, *_GATEWAY, *PAIR_METRICS),
    *(*_ENGINE, *SPECULATION_METRICS, *TIER_METRICS, *_REPLICA),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}
