"""Options mean what they mean to vLLM, and bad ones name themselves."""

import math
from pathlib import Path
from typing import Any

import pytest

from loadtest.config import LoadConfig
from loadtest.load_config import capacity_search, load_config
from loadtest.options import build_parser


def config_of(*options: str, **environ: str) -> LoadConfig:
    return load_config(build_parser().parse_args(options), environ)


def test_the_defaults_are_vllms() -> None:
    config = config_of()
    assert config.server.target.base_url == "http://127.0.0.1:8000"
    assert config.server.target.endpoint == "/v1/completions"
    assert config.traffic.num_programs == 1000
    assert math.isinf(config.traffic.rate_rps)


def test_vllms_own_command_line_is_understood() -> None:
    config = config_of(
        "--backend", "openai-chat", "--base-url", "http://h:1",
        "--endpoint", "/v1/chat/completions",
        "--model", "m", "--dataset-name", "random", "--random-input-len", "1024",
        "--random-output-len", "64", "--num-prompts", "50", "--request-rate", "4",
        "--burstiness", "0.5", "--max-concurrency", "8", "--goodput", "ttft:500", "tpot:50",
        "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99", "--ignore-eos",
        "--extra-body", '{"min_p": 0.1}', "--header", "x-a=b", "--seed", "3", "--save-result",
        "--result-dir", "out", "--temperature", "0",
    )  # fmt: skip
    assert config.server.backend == "openai-chat"
    assert config.server.extra_body == {"min_p": 0.1, "temperature": 0.0}
    assert config.server.target.headers == {"x-a": "b"}
    assert config.measure.goodput_ms == {"ttft": 500, "tpot": 50}
    assert config.measure.percentiles == (50, 99)
    assert (config.traffic.rate_rps, config.traffic.burstiness) == (4, 0.5)
    assert config.workload.input_tokens.parameters == (1024,)


def test_goodput_takes_commas_too() -> None:
    assert config_of("--goodput", "ttft:500,e2el:9000").measure.goodput_ms == {
        "ttft": 500,
        "e2el": 9000,
    }


@pytest.mark.parametrize(
    ("options", "arrivals"),
    [
        (["--dataset", "azure-conv"], "trace"),
        (["--dataset", "azure-conv", "--speedup", "5"], "trace"),
        (["--dataset", "azure-conv", "--request-rate", "5"], "rate"),
        (["--dataset", "custom"], "rate"),
        (["--dataset", "custom", "--speedup", "1"], "trace"),
        (["--users", "4"], "users"),
    ],
)
def test_traces_keep_their_times_unless_a_rate_is_given(options: list[str], arrivals: str) -> None:
    assert config_of(*options).traffic.arrivals == arrivals


def test_conversations_go_to_the_chat_endpoint() -> None:
    assert config_of("--dataset", "mt-bench").server.target.endpoint == "/v1/chat/completions"


def test_a_duration_alone_needs_no_count_and_waits_only_so_long() -> None:
    traffic = config_of("--request-rate", "2", "--duration", "60").traffic
    assert (traffic.num_programs, traffic.duration_s, traffic.grace_s) == (None, 60, 60)


def test_the_key_of_the_environment_becomes_a_header() -> None:
    headers = config_of(OPENAI_API_KEY="secret").server.target.headers
    assert headers["authorization"] == "Bearer secret"


def test_real_text_ends_where_the_model_ends_it() -> None:
    assert config_of("--dataset", "random").server.ignore_eos
    assert not config_of("--dataset", "mt-bench").server.ignore_eos


def test_lengths_may_come_from_a_trace() -> None:
    path = Path(__file__).parent / "data" / "azure.csv"
    workload = config_of("--lengths-from", f"azure:{path}").workload
    assert workload.input_tokens.parameters == (374, 396, 879)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--goodput", "ttft=5"], "--goodput"),
        (["--goodput", "latency:5"], "latency"),
        (["--extra-body", "{"], "--extra-body"),
        (["--header", "x"], "--header"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["--speedup", "2", "--request-rate", "1"], "--speedup"),
        (["--duration", "5"], "--request-rate"),
        (["--processes", "4", "--max-concurrency", "2"], "num_processes=4"),
        (["--percentile-metrics", "x"], "'x'"),
    ],
)
def test_a_bad_option_is_named(options: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_of(*options)


def test_a_capacity_without_limits_is_refused() -> None:
    args: Any = build_parser().parse_args(["--find-capacity"])
    with pytest.raises(ValueError, match="--goodput"):
        capacity_search(args)
