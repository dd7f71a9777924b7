"""Puts a run's figures under the names that vLLM's benchmark gives them, with ours beside."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np

from loadtest.call_record import CallRecord
from loadtest.config import LoadConfig
from loadtest.figures import (
    Values,
    Window,
    attainment,
    error_classes,
    latency_values,
    measured_window,
    summary_of,
    throughput_figures,
)
from loadtest.load_run import LoadOutcome
from loadtest.saturation import find_saturation, judge_driver
from loadtest.server_facts import ServerFacts
from loadtest.timeline import build_timeline, peak_concurrency, peak_tokens_per_s

QUANTILES = tuple(range(101))
MAX_POINTS = 1500
# Per-request lists that only --save-detailed keeps, as in vLLM.
DETAILED_KEYS = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
)


def build_result(
    config: LoadConfig, facts: ServerFacts, outcome: LoadOutcome, *, now: datetime
) -> dict[str, Any]:
    """The whole result as JSON-ready values. Raises ValueError for an empty measured window."""
    traffic, measure = config.traffic, config.measure
    window = measured_window(
        outcome.records,
        outcome.start_at,
        warm_up_s=traffic.warm_up_s,
        cool_down_s=traffic.cool_down_s,
    )
    counted = [record for record in outcome.records if window.holds(record.sent_at)]
    values = latency_values(counted)
    result = _identity(config, facts, now) | _traffic_figures(config, outcome)
    result |= throughput_figures(outcome.records, window, measure.goodput_ms)
    result |= {
        "max_output_tokens_per_s": peak_tokens_per_s(outcome.records, outcome.start_at),
        "max_concurrent_requests": peak_concurrency(outcome.records),
    }
    for name in measure.metrics:
        result |= summary_of(values[name], name, measure.percentiles)
    if traffic.max_concurrency is not None:
        waits = np.array([record.queue_s * 1000.0 for record in counted])
        result |= summary_of(waits, "client_queue_time", measure.percentiles)
    result |= _own_figures(config, facts, outcome, window=window, counted=counted)
    result["distributions_ms"] = {name: _quantiles(values[name]) for name in values}
    if measure.detailed:
        result |= detailed_lists(outcome.records)
    return result


def detailed_lists(records: Sequence[CallRecord]) -> dict[str, list[Any]]:
    """vLLM's per-request lists, in seconds and tokens, in order of sending."""
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [record.ttft_s if record.chunk_at else 0.0 for record in records],
        "itls": [record.gaps_s() for record in records],
        "latencies": [record.e2e_s if record.chunk_at else 0.0 for record in records],
        "start_times": [record.sent_at for record in records],
        "queue_times": [record.queue_s for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error for record in records],
    }


def _identity(config: LoadConfig, facts: ServerFacts, now: datetime) -> dict[str, Any]:
    server = config.server
    identity = {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": server.backend,
        "backend": server.backend,
        "label": config.label or server.backend,
        "model_id": facts.model,
        "tokenizer_id": str(server.tokenizer) if server.tokenizer else None,
    }
    return identity | dict(config.metadata)


def _traffic_figures(config: LoadConfig, outcome: LoadOutcome) -> dict[str, Any]:
    traffic = config.traffic
    figures: dict[str, Any] = {
        "num_prompts": traffic.num_programs or len(outcome.records),
        "request_rate": "inf" if math.isinf(traffic.rate_rps) else traffic.rate_rps,
        "burstiness": "inf" if math.isinf(traffic.burstiness) else traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
    }
    if traffic.ramp is not None:
        figures |= {
            "ramp_up_strategy": traffic.ramp.strategy,
            "ramp_up_start_rps": traffic.ramp.start_rps,
            "ramp_up_end_rps": traffic.ramp.end_rps,
        }
    return figures


def _own_figures(
    config: LoadConfig,
    facts: ServerFacts,
    outcome: LoadOutcome,
    *,
    window: Window,
    counted: Sequence[CallRecord],
) -> dict[str, Any]:
    traffic, limits = config.traffic, config.measure.goodput_ms
    saturation = find_saturation(
        outcome.records,
        is_open_loop=traffic.arrivals != "users" and traffic.max_concurrency is None,
    )
    driver = judge_driver(outcome.records, cpu_ratio=outcome.cpu_ratio)
    finished = [record for record in counted if record.outcome == "finished"]
    return {
        "arrivals": traffic.arrivals,
        "dataset": config.workload.dataset,
        "seed": traffic.seed,
        "num_processes": config.num_processes,
        "was_stopped": outcome.was_stopped,
        "measured_window_s": [
            round(window.begin - outcome.start_at, 3),
            round(window.end - outcome.start_at, 3),
        ],
        "num_sent": len(outcome.records),
        "cancelled": sum(record.outcome == "cancelled" for record in counted),
        "errors_by_class": error_classes(counted),
        "goodput_config_ms": dict(limits),
        "goodput_attainment": attainment(counted, limits) if limits else None,
        "total_cached_tokens": sum(record.cached_tokens for record in finished),
        "schedule_lag_ms": _lag_summary(outcome.records),
        "driver_cpu_ratio": round(outcome.cpu_ratio, 3),
        "driver_kept_up": driver.kept_up,
        "driver_detail": driver.detail,
        "saturation": asdict(saturation),
        "output_tokens_from": _token_source(finished),
        "prompt_lengths_from": facts.scale.source,
        "timeline": asdict(build_timeline(outcome.records, outcome.start_at)),
        "ttft_ms_by_prompt_tokens": _scatter(finished),
    }


def _token_source(finished: Sequence[CallRecord]) -> str:
    with_usage = sum(record.has_usage for record in finished)
    if with_usage == len(finished):
        return "usage"
    return "chunks" if with_usage == 0 else "usage and chunks"


def _lag_summary(records: Sequence[CallRecord]) -> Mapping[str, float]:
    lags = np.array([record.lag_s * 1000.0 for record in records] or [0.0])
    return {
        "mean": float(lags.mean()),
        "p50": float(np.percentile(lags, 50)),
        "p99": float(np.percentile(lags, 99)),
        "max": float(lags.max()),
    }


def _quantiles(values: Values) -> list[float]:
    if not len(values):
        return []
    return [round(float(value), 4) for value in np.percentile(values, QUANTILES)]


def _scatter(finished: Sequence[CallRecord]) -> list[tuple[int, float]]:
    step = max(1, len(finished) // MAX_POINTS)
    return [(record.prompt_tokens, round(record.ttft_s * 1000.0, 3)) for record in finished[::step]]
