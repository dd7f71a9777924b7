"""Says which boards there are and writes them beside it: `python k8s/dashboards/generate.py`.

Boards are code because a board of forty panels that was clicked together cannot be reviewed. Needs
nothing but Python; tests check that the files are what this makes, and that every metric exists.
"""

from pathlib import Path

import pool_panels
import speculation_panels
import tier_panels
from grafana import ALL_MODELS, ONE_REPLICA, Board, Panel, mean, quantile, quantiles, rate, render

FOLDER = Path(__file__).parent


def overview() -> Board:
    """What every operator looks at first."""
    return Board(
        uid="pagoda-overview",
        title="Pagoda / Overview",
        variables=[("model", "label_values(vllm:num_requests_running, model_name)")],
        rows=[
            ("Now", _now()),
            ("What clients feel", _latencies()),
            ("Where a first token's time goes", _first_token()),
            ("Traffic", _traffic()),
            ("Replicas", _replicas()),
            ("Pools", pool_panels.pools()),
            ("Gateways", _gateways()),
        ],
    )


def replica() -> Board:
    """One replica's memory and scheduler."""
    return Board(
        uid="pagoda-replica",
        title="Pagoda / One replica: KV cache and scheduler",
        variables=[
            ("model", "label_values(vllm:num_requests_running, model_name)"),
            ("replica", 'label_values(vllm:num_requests_running{model_name=~"$model"}, replica)'),
        ],
        rows=[
            ("Batch", _batch()),
            ("Guessed tokens", speculation_panels.speculation()),
            ("KV cache", _kv_cache()),
            ("Host memory", tier_panels.host_memory()),
            ("Block store", tier_panels.store()),
            ("Process", _process()),
        ],
    )


def _now() -> list[Panel]:
    usable = 'pagoda:replica_state{state=~"active|suspect"}'
    running = f"sum(vllm:num_requests_running{{{ALL_MODELS}}})"
    waiting = f"sum(vllm:num_requests_waiting{{{ALL_MODELS}}})"
    return [
        Panel(
            "Usable replicas",
            [("", f"sum(max by (replica) ({usable}))")],
            width=4,
            kind="stat",
        ),
        Panel("Running", [("", running)], width=4, kind="stat"),
        Panel("Waiting", [("", waiting)], width=4, kind="stat"),
        Panel(
            "Output tokens/s", [("", rate("vllm:generation_tokens_total"))], width=4, kind="stat"
        ),
        Panel(
            "TTFT p99",
            [("", quantile(0.99, "vllm:time_to_first_token_seconds"))],
            "s",
            width=4,
            kind="stat",
        ),
        Panel(
            "KV in use",
            [("", f"max(vllm:kv_cache_usage_perc{{{ALL_MODELS}}})")],
            "percentunit",
            width=4,
            kind="stat",
        ),
    ]


def _latencies() -> list[Panel]:
    return [
        Panel("Time to first token", quantiles("vllm:time_to_first_token_seconds"), "s"),
        Panel("Inter-token latency", quantiles("vllm:inter_token_latency_seconds"), "s"),
        Panel(
            "Time per output token",
            quantiles("vllm:request_time_per_output_token_seconds"),
            "s",
            description="A property of the batch: neighbours set the cadence.",
        ),
        Panel("End to end", quantiles("vllm:e2e_request_latency_seconds"), "s"),
        Panel(
            "Queue, prefill, decode (mean)",
            [
                ("queue", mean("vllm:request_queue_time_seconds")),
                ("prefill", mean("vllm:request_prefill_time_seconds")),
                ("decode", mean("vllm:request_decode_time_seconds")),
                ("inference", mean("vllm:request_inference_time_seconds")),
            ],
            "s",
        ),
        Panel(
            "Ends",
            [
                (
                    "{{finished_reason}}",
                    rate("vllm:request_success_total", by="finished_reason"),
                )
            ],
            "reqps",
            stacked=True,
        ),
    ]


def _first_token() -> list[Panel]:
    part = "pagoda:ttft_part_seconds"
    return [
        Panel("Mean, by part", [("{{part}}", mean(part, by="part"))], "s", 12, stacked=True),
        Panel("p99 of each part", [("{{part}}", quantile(0.99, part, by="part"))], "s", 12),
    ]


def _traffic() -> list[Panel]:
    return [
        Panel(
            "Tokens per second",
            [
                ("prompt", rate("vllm:prompt_tokens_total")),
                ("prompt, cached", rate("vllm:prompt_tokens_cached_total")),
                ("output", rate("vllm:generation_tokens_total")),
            ],
        ),
        Panel("Prompt length", quantiles("vllm:request_prompt_tokens")),
        Panel("Output length", quantiles("vllm:request_generation_tokens")),
        Panel(
            "Turned away",
            [("{{reason}}", rate("vllm:admission_rejections_total", by="reason"))],
            "reqps",
            stacked=True,
        ),
        Panel("Clients that left", [("", rate("pagoda:cancelled_calls_total"))], "reqps"),
        Panel(
            "Longest output, max_tokens and n asked for (mean)",
            [
                ("longest output", mean("vllm:request_max_num_generation_tokens")),
                ("max_tokens", mean("vllm:request_params_max_tokens")),
                ("n", mean("vllm:request_params_n")),
            ],
        ),
    ]


def _replicas() -> list[Panel]:
    chosen = f"{{{ALL_MODELS}}}"
    return [
        Panel("Running", [("{{replica}}", f"vllm:num_requests_running{chosen}")]),
        Panel("Waiting", [("{{replica}}", f"vllm:num_requests_waiting{chosen}")]),
        Panel("KV in use", [("{{replica}}", f"vllm:kv_cache_usage_perc{chosen}")], "percentunit"),
        Panel(
            "State, worst view of any gateway",
            [
                (
                    "{{replica}} {{state}}",
                    'max by (replica, state) (pagoda:replica_state{state!="active"}) > 0',
                )
            ],
        ),
        Panel("Stuck", [("{{replica}}", "max by (replica) (pagoda:replica_stuck_seconds)")], "s"),
        Panel(
            "Preemptions per second",
            [("{{replica}}", rate("vllm:num_preemptions_total", by="replica"))],
        ),
    ]


def _gateways() -> list[Panel]:
    return [
        Panel("Open calls", [("{{gateway}}", f"pagoda:open_calls{{{ALL_MODELS}}}")]),
        Panel(
            "Responses", [("{{status}}", rate("pagoda:http_responses_total", by="status"))], "reqps"
        ),
        Panel(
            "Loop lag p99",
            [("{{gateway}}", quantile(0.99, "pagoda:gateway_loop_lag_seconds", by="gateway"))],
            "s",
        ),
        Panel("Tasks", [("{{gateway}}", f"pagoda:gateway_tasks{{{ALL_MODELS}}}")]),
        Panel(
            "Router decisions",
            [("{{reason}}", rate("pagoda:router_decisions_total", by="reason"))],
            stacked=True,
        ),
        Panel(
            "Prefix blocks routed to their holder",
            [
                ("prompt", rate("pagoda:routed_prompt_blocks_total")),
                ("hit", rate("pagoda:routed_hit_blocks_total")),
            ],
        ),
        Panel(
            "Prefix index",
            [
                ("{{gateway}} blocks", f"pagoda:prefix_index_blocks{{{ALL_MODELS}}}"),
                ("{{gateway}} inexact", f"pagoda:prefix_index_inexact_replicas{{{ALL_MODELS}}}"),
                ("{{kind}}", rate("pagoda:prefix_index_repairs_total", by="kind")),
                ("dropped blocks", rate("pagoda:prefix_index_dropped_blocks_total")),
            ],
        ),
        Panel("Failovers", [("{{reason}}", rate("pagoda:failovers_total", by="reason"))]),
        Panel(
            "Token streams",
            [
                ("came back", rate("pagoda:token_stream_reconnects_total")),
                ("lost", rate("pagoda:token_stream_losses_total")),
                ("steps joined", rate("pagoda:token_stream_coalesced_steps_total")),
            ],
        ),
        Panel(
            "Engine cores restarted",
            [
                (
                    "{{replica}}",
                    f"increase(pagoda:engine_core_restarts_total{{{ALL_MODELS}}}[15m])",
                )
            ],
        ),
    ]


def _batch() -> list[Panel]:
    chosen = f"{{{ONE_REPLICA}}}"
    return [
        Panel(
            "Batch occupancy",
            [
                ("mean", mean("pagoda:batch_occupancy_ratio", ONE_REPLICA)),
                *quantiles("pagoda:batch_occupancy_ratio", ONE_REPLICA),
            ],
            "percentunit",
        ),
        Panel("Tokens of a step", quantiles("vllm:iteration_tokens_total", ONE_REPLICA)),
        Panel(
            "Parts of a step (mean)",
            [("{{part}}", mean("pagoda:step_seconds", ONE_REPLICA, "part"))],
            "s",
            stacked=True,
        ),
        Panel(
            "Running and waiting",
            [
                ("running", f"vllm:num_requests_running{chosen}"),
                ("waiting", f"vllm:num_requests_waiting{chosen}"),
                ("open", f"pagoda:replica_open_requests{chosen}"),
            ],
        ),
        Panel(
            "Work ahead",
            [
                ("waiting tokens", f"pagoda:waiting_tokens{chosen}"),
                ("outstanding tokens", f"pagoda:outstanding_tokens{chosen}"),
            ],
        ),
        Panel(
            "Ends",
            [("{{how}}", rate("pagoda:engine_requests_ended_total", ONE_REPLICA, "how"))],
            "reqps",
        ),
    ]


def _kv_cache() -> list[Panel]:
    chosen = f"{{{ONE_REPLICA}}}"
    hits = rate("vllm:prefix_cache_hits_total", ONE_REPLICA)
    queries = rate("vllm:prefix_cache_queries_total", ONE_REPLICA)
    return [
        Panel("Blocks", [("{{kind}}", f"pagoda:kv_blocks{chosen}")], stacked=True),
        Panel(
            "Waste inside held blocks",
            [("", f"pagoda:kv_waste_ratio{chosen}")],
            "percentunit",
            description="Slots of held blocks without a token; reserving to the maximum would "
            "waste most of the cache (lecture 10, 10.2).",
        ),
        Panel("Prefix hits", [("", f"{hits} / {queries}")], "percentunit"),
        *_preemptions(),
        Panel(
            "Choices forked, and blocks copied for them",
            [
                ("forks", rate("pagoda:forks_total", ONE_REPLICA)),
                ("copied blocks", rate("pagoda:copied_blocks_total", ONE_REPLICA)),
            ],
        ),
        Panel(
            "Prompts that passed a step under way",
            [("", rate("pagoda:overtaking_prefills_total", ONE_REPLICA))],
        ),
        Panel(
            "Preemptions of a request, and prompt tokens it computed (mean, all replicas)",
            [
                ("preemptions", mean("vllm:request_num_preemptions")),
                ("prompt tokens", mean("vllm:request_prefill_kv_computed_tokens")),
            ],
            width=12,
        ),
        Panel(
            "Layout",
            [
                (
                    "{{num_gpu_blocks}} blocks of {{block_size}}, {{cache_dtype}}",
                    f"vllm:cache_config_info{chosen}",
                )
            ],
            width=12,
            kind="stat",
        ),
    ]


def _preemptions() -> list[Panel]:
    return [
        Panel(
            "Preemption decisions",
            [
                (
                    "{{decision}}",
                    rate("pagoda:preemption_decisions_total", ONE_REPLICA, "decision"),
                )
            ],
        ),
        Panel(
            "Prompt tokens computed, and tokens lost",
            [
                ("computed", rate("pagoda:computed_prompt_tokens_total", ONE_REPLICA)),
                ("lost", rate("pagoda:discarded_tokens_total", ONE_REPLICA)),
            ],
        ),
        Panel(
            "Steps below the watermark",
            [("", rate("pagoda:low_watermark_steps_total", ONE_REPLICA))],
        ),
    ]


def _process() -> list[Panel]:
    return [
        Panel("Loop lag", quantiles("pagoda:replica_loop_lag_seconds", ONE_REPLICA), "s"),
        Panel("Tasks", [("tasks", f"pagoda:replica_tasks{{{ONE_REPLICA}}}")]),
        Panel(
            "Start-up phases",
            [("{{phase}}", f"pagoda:startup_phase_seconds{{{ONE_REPLICA}}}")],
            "s",
            kind="bargauge",
        ),
    ]


BOARDS = {"overview.json": overview, "replica.json": replica}


if __name__ == "__main__":
    for file_name, make in BOARDS.items():
        (FOLDER / file_name).write_text(render(make()))
