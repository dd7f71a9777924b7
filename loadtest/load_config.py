"""Turns the command line into a LoadConfig, filling in what depends on other options."""

import argparse
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.arrivals import Ramp
from loadtest.capacity import CapacitySearch
from loadtest.config import (
    ArrivalKind,
    LoadConfig,
    MeasureConfig,
    ServerConfig,
    TrafficConfig,
    WorkloadConfig,
)
from loadtest.datasets import LengthShaping
from loadtest.datasets.registry import LENGTH_READERS, find_file
from loadtest.distribution import Distribution, fixed, samples
from loadtest.http_client import Target
from loadtest.openai_backend import DEFAULT_ENDPOINT, BackendKind
from loadtest.options import goodput_of, pairs_of
from loadtest.synthetic import SYNTHETIC

DEFAULT_NUM_PROMPTS = 1000
DATA_DIR_VARIABLE = "PAGODA_SHARED_DIR"


def load_config(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> LoadConfig:
    """The config of a run. Raises ValueError or FileNotFoundError naming the option at fault."""
    return LoadConfig(
        server=_server(args, environ),
        workload=_workload(args, environ),
        traffic=_traffic(args),
        measure=MeasureConfig(
            goodput_ms=goodput_of(args.goodput),
            metrics=tuple(args.percentile_metrics.split(",")),
            percentiles=tuple(float(part) for part in args.metric_percentiles.split(",")),
            detailed=args.save_detailed,
        ),
        num_processes=args.processes,
        label=args.label,
        metadata=pairs_of(args.metadata, "--metadata"),
    )


def capacity_search(args: argparse.Namespace) -> CapacitySearch:
    """The search that --find-capacity asks for. Raises ValueError."""
    if not args.goodput:
        raise ValueError("--find-capacity needs --goodput: it says what good means")
    first = args.request_rate if args.request_rate and math.isfinite(args.request_rate) else 1.0
    return CapacitySearch(
        args.target_attainment, first, args.capacity_precision, args.capacity_max_probes
    )


def _server(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerConfig:
    kind = _backend_kind(args)
    base_url = args.base_url or f"http://{args.host}:{args.port}"
    headers = pairs_of(args.header, "--header")
    if key := environ.get("OPENAI_API_KEY"):
        headers.setdefault("authorization", f"Bearer {key}")
    sampling = {
        name: value
        for name in ("temperature", "top_p", "top_k")
        if (value := getattr(args, name)) is not None
    }
    made_up = args.dataset_name not in ("sharegpt", "sharegpt-multi-turn", "mt-bench")
    return ServerConfig(
        target=Target(
            base_url,
            args.endpoint or DEFAULT_ENDPOINT[kind],
            headers,
            args.request_timeout,
            not args.insecure,
        ),
        backend=kind,
        model=args.model,
        tokenizer=Path(args.tokenizer) if args.tokenizer else None,
        calibrate=args.calibrate,
        # Made-up text ends answers early or never; the trace's output length is the point.
        ignore_eos=made_up if args.ignore_eos is None else args.ignore_eos,
        continuous_usage=args.continuous_usage,
        extra_body=sampling | _json_object(args.extra_body),
        ready_timeout_s=args.ready_check_timeout_sec,
    )


def _backend_kind(args: argparse.Namespace) -> BackendKind:
    if args.backend == "openai-chat" or (args.endpoint or "").endswith("/chat/completions"):
        return "openai-chat"
    is_conversation = args.dataset_name in ("sessions", "agents", "mt-bench", "sharegpt-multi-turn")
    return "openai-chat" if args.backend is None and is_conversation else "openai"


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--extra-body {text!r}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"--extra-body {text!r}: expected a JSON object")
    return value


def _workload(args: argparse.Namespace, environ: Mapping[str, str]) -> WorkloadConfig:
    folders = _folders(args, environ)
    input_tokens, output_tokens = args.input_len, args.output_len or fixed(128)
    if args.lengths_from:
        input_tokens, output_tokens = _lengths_from(args.lengths_from, folders)
    is_made_up = args.dataset_name in SYNTHETIC
    replaces_output = args.output_len is not None and not is_made_up
    fixed_output = round(args.output_len.parameters[0]) if replaces_output else None
    think_time = args.think_time
    return WorkloadConfig(
        dataset=args.dataset_name,
        path=Path(args.dataset_path) if args.dataset_path else None,
        folders=folders,
        shaping=LengthShaping(
            args.input_scale,
            args.output_scale,
            args.max_input_len,
            args.max_output_len,
            args.max_model_len,
            fixed_output,
        ),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prefix_tokens=args.prefix_len,
        num_prefixes=args.num_prefixes,
        prefix_skew=args.prefix_skew,
        turns=args.num_turns,
        think_time_s=think_time,
        agent_steps=args.agent_steps,
        agent_fanout=args.agent_fanout,
        tool_pause_s=args.tool_pause,
        num_choices=args.n,
        shuffle=not args.disable_shuffle,
    )


def _folders(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Path, ...]:
    named = [Path(folder) for folder in args.dataset_dir]
    if folder := environ.get(DATA_DIR_VARIABLE):
        named.append(Path(folder))
    return (*named, Path("shared"), Path("..") / "shared")


def _lengths_from(name: str, folders: tuple[Path, ...]) -> tuple[Distribution, Distribution]:
    dataset, _, path = name.partition(":")
    if dataset not in LENGTH_READERS:
        raise ValueError(f"--lengths-from {name!r}: expected one of {', '.join(LENGTH_READERS)}")
    file = find_file(dataset, Path(path) if path else None, folders)
    rows = list(LENGTH_READERS[dataset](file))
    return (
        samples([row.input_tokens for row in rows]),
        samples([row.output_tokens for row in rows]),
    )


def _traffic(args: argparse.Namespace) -> TrafficConfig:
    num_programs = args.num_prompts
    if num_programs is None and args.duration is None:
        num_programs = DEFAULT_NUM_PROMPTS
    rate = math.inf if args.request_rate is None else args.request_rate
    grace_s = args.grace_period
    if grace_s is None:
        grace_s = math.inf if args.duration is None else 60.0
    return TrafficConfig(
        arrivals=_arrival_kind(args),
        rate_rps=rate,
        burstiness=args.burstiness,
        ramp=_ramp(args),
        speedup=args.speedup or 1.0,
        num_users=args.users or 1,
        think_time_s=args.think_time,
        num_programs=num_programs,
        duration_s=args.duration,
        max_concurrency=args.max_concurrency,
        num_warmups=args.num_warmups,
        warm_up_s=args.warm_up,
        cool_down_s=args.cool_down,
        grace_s=grace_s,
        cancel_ratio=args.cancel_rate,
        cancel_after_s=args.cancel_delay,
        seed=args.seed,
    )


def _arrival_kind(args: argparse.Namespace) -> ArrivalKind:
    if args.users is not None:
        return "users"
    has_rate = args.request_rate is not None or args.ramp_up_strategy or args.find_capacity
    has_times = args.dataset_name in ("azure-conv", "azure-code", "azure", "burstgpt", "qwen") or (
        args.dataset_name.startswith("mooncake")
    )
    if args.speedup is not None and has_rate:
        raise ValueError("--speedup replays a trace's own times: leave out the rate")
    return "trace" if args.speedup is not None or (has_times and not has_rate) else "rate"


def _ramp(args: argparse.Namespace) -> Ramp | None:
    if args.ramp_up_strategy is None:
        return None
    if args.ramp_up_start_rps is None or args.ramp_up_end_rps is None:
        raise ValueError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    return Ramp(args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
