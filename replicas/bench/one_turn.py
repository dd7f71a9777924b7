"""Runs workloads once in a fresh process and tells of each in a file, for comparisons in turn.

Whoever compares engines starts this for our turn and the peer's own program for the peer's; both
write the same lines: `{"workload", "began_at", "ended_at", "figures"}`, with times in seconds of
the monotonic clock, then `{"done", "settings"}`. Then it waits for its standard input to close, so
that its memory can still be measured.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from replicas.assembly import build_engine
from replicas.bench.measure import Run, run_workload
from replicas.bench.workload import FILES, WARM_UP, WorkloadRequest, read_workload, root_of
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.speculation.config import SpeculationConfig
from replicas.team_cores import bind_own_process, num_allowed_cores


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 for a setting that there is not."""
    options = _parser().parse_args(arguments)
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    try:
        config = with_settings(EngineConfig(model=model.folder), options.set)
    except ValueError as error:
        print(f"--set: {error}", file=sys.stderr)
        return 2
    bind_own_process(config.num_threads or num_allowed_cores())
    engine, info = build_engine(config)
    with Path(options.events).open("a") as events:
        _run_all(options, model, engine, events)
        _tell(events, done=True, settings=asdict(info))
    sys.stdin.read()
    engine.close()
    return 0


def _run_all(
    options: argparse.Namespace, model: PreparedModel, engine: Engine, events: IO[str]
) -> None:
    root = root_of(model, engine.config.block_size)
    folder = Path(options.workloads)
    warm_up = read_workload(folder / WARM_UP, model, scale=1.0)
    for name in options.only.split(","):
        requests = read_workload(folder / FILES[name], model, scale=1.0)[: options.requests]
        run_workload(engine, warm_up, root)
        began_at = time.monotonic()
        run = run_workload(engine, requests, root)
        ended_at = time.monotonic()
        _tell(
            events,
            workload=name,
            began_at=began_at,
            ended_at=ended_at,
            figures=turn_figures(run, requests),
        )


def turn_figures(run: Run, requests: Sequence[WorkloadRequest]) -> dict[str, float]:
    """What a peer's program tells too; prompt tokens are those asked for, cached or not."""
    num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    ttfts_ms = 1e3 * np.array(run.ttfts_s())
    tpots_ms = 1e3 * np.array(run.tpots_s() or [0.0])
    return {
        "seconds": run.seconds,
        "output_tokens": run.num_output_tokens,
        "output_tokens_per_s": run.output_tokens_per_s,
        "prompt_tokens_per_s": num_prompt_tokens / run.seconds,
        "ttft_p50_ms": float(np.percentile(ttfts_ms, 50)),
        "ttft_p99_ms": float(np.percentile(ttfts_ms, 99)),
        "tpot_p50_ms": float(np.percentile(tpots_ms, 50)),
        "tpot_p99_ms": float(np.percentile(tpots_ms, 99)),
    }


def with_settings(config: EngineConfig, settings: Sequence[str]) -> EngineConfig:
    """The config with each NAME=VALUE replaced, of the engine, its scheduler or its speculation.

    A value is JSON, or else a word. Raises ValueError for a name or a value that is not known.
    """
    parts = (SpeculationConfig, SchedulerConfig, EngineConfig)
    names = {part: {field.name for field in dataclasses.fields(part)} for part in parts}
    changes: dict[type, dict[str, Any]] = {part: {} for part in parts}
    for setting in settings:
        name, _equals, text = setting.partition("=")
        part = next((part for part in parts if name in names[part]), None)
        if part is None:
            raise ValueError(f"{name}: no such setting of an engine")
        changes[part][name] = _value(text)
    scheduler = config.scheduler
    speculation = dataclasses.replace(scheduler.speculation, **changes[SpeculationConfig])
    changes[SchedulerConfig].setdefault("speculation", speculation)
    scheduler = dataclasses.replace(scheduler, **changes[SchedulerConfig])
    return dataclasses.replace(config, **{"scheduler": scheduler, **changes[EngineConfig]})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _tell(events: IO[str], **line: object) -> None:
    events.write(json.dumps(line) + "\n")
    events.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m replicas.bench.one_turn", description=__doc__)
    parser.add_argument("--only", required=True, metavar="W1,W4", help="workloads, in order")
    parser.add_argument("--workloads", required=True, help="folder of JSONL files")
    parser.add_argument("--requests", type=int, default=None, help="first ones of each workload")
    parser.add_argument("--events", required=True, help="file that the lines are added to")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
