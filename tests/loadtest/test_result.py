"""A result carries every key of vLLM's benchmark, with the meaning it has there."""

import json
from dataclasses import replace
from datetime import datetime

import pytest

from loadtest.arrivals import Ramp
from loadtest.config import LoadConfig, TrafficConfig
from loadtest.load_run import LoadOutcome, outcome_of
from loadtest.result import DETAILED_KEYS, build_result
from loadtest.worker import ShareResult
from tests.loadtest.driving import FACTS, config_for
from tests.loadtest.records import record

VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
    "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
}  # fmt: skip
VLLM_DETAILED_KEYS = {
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
    "generated_texts", "errors",
}  # fmt: skip
NOW = datetime(2026, 11, 29, 12, 30, 5)


def result_of(config: LoadConfig, count: int = 50) -> dict[str, object]:
    records = [record(sent_at=100.0 + i * 0.1) for i in range(count)]
    return build_result(config, FACTS, LoadOutcome(records, 100.0, 0.1, False), now=NOW)


def test_every_key_of_vllm_is_there() -> None:
    result = result_of(config_for("http://x", TrafficConfig(rate_rps=10)))
    latencies = {
        f"{statistic}_{metric}_ms"
        for metric in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
    }
    assert set(result) >= VLLM_KEYS | latencies
    assert result["date"] == "20261129-123005"
    assert result["request_goodput"] is None


def test_a_request_that_left_a_moment_before_the_start_counts() -> None:
    shares = [[record(sent_at=100.1)], [record(sent_at=99.9998), record(sent_at=100.0)]]
    results = [ShareResult(records, cpu_ratio=0.1) for records in shares]
    outcome = outcome_of(results, 100.0, was_stopped=False)
    result = build_result(config_for("http://x", TrafficConfig()), FACTS, outcome, now=NOW)
    assert result["completed"] == result["num_sent"] == 3
    timeline = result["timeline"]
    assert sum(timeline["arrival_rate"]) * timeline["bucket_s"] == pytest.approx(3, rel=1e-3)


def test_detailed_lists_are_vllms_and_only_on_demand() -> None:
    assert set(DETAILED_KEYS) == VLLM_DETAILED_KEYS
    plain = result_of(config_for("http://x", TrafficConfig()))
    assert not VLLM_DETAILED_KEYS & set(plain)
    detailed = result_of(config_for("http://x", TrafficConfig(), detailed=True))
    lists = [detailed[key] for key in VLLM_DETAILED_KEYS]
    assert [len(one) for one in lists] == [50] * len(lists)  # type: ignore[arg-type]


def test_infinite_rates_are_written_as_vllm_writes_them() -> None:
    result = result_of(config_for("http://x", TrafficConfig(burstiness=float("inf"))))
    assert result["request_rate"] == "inf"
    assert "Infinity" not in json.dumps(result)


def test_a_gate_adds_vllms_client_queue_time() -> None:
    result = result_of(config_for("http://x", TrafficConfig(max_concurrency=4)))
    assert "p99_client_queue_time_ms" in result


def test_a_ramp_is_named_as_in_vllm() -> None:
    traffic = TrafficConfig(ramp=Ramp("linear", 1, 9))
    result = result_of(config_for("http://x", traffic))
    assert (result["ramp_up_strategy"], result["ramp_up_end_rps"]) == ("linear", 9)


def test_chosen_metrics_and_percentiles_are_the_only_ones() -> None:
    config = config_for("http://x", TrafficConfig(), metrics=("ttft",), percentiles=(99.9,))
    result = result_of(config)
    assert "p99.9_ttft_ms" in result
    assert not {"p99_ttft_ms", "mean_tpot_ms"} & set(result)


def test_goodput_and_its_share_are_reported_under_limits() -> None:
    config = config_for("http://x", TrafficConfig(), goodput_ms={"ttft": 100.1, "tpot": 10.1})
    result = result_of(config)
    assert result["goodput_attainment"] == 1.0
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])


def test_metadata_is_copied_in() -> None:
    config = replace(config_for("http://x", TrafficConfig()), metadata={"gpu": "none"}, label="a")
    result = result_of(config)
    assert (result["gpu"], result["label"]) == ("none", "a")


def test_what_counts_were_taken_from_is_said() -> None:
    assert result_of(config_for("http://x", TrafficConfig()))["output_tokens_from"] == "chunks"


def test_a_run_without_any_request_is_still_a_result() -> None:
    result = result_of(config_for("http://x", TrafficConfig()), count=0)
    assert (result["completed"], result["mean_ttft_ms"]) == (0, 0.0)
    assert json.dumps(result)
