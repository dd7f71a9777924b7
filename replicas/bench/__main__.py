"""Runs the workloads in process and prints, and saves, a table of medians."""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from replicas.assembly import build_engine
from replicas.bench.busy_parent import measure_busy_parent
from replicas.bench.forks import forks_table
from replicas.bench.greedy_agreement import PROMPT_TOKENS, agreement_table, greedy_agreement
from replicas.bench.measure import Run, run_workload
from replicas.bench.move_cost import moves_table
from replicas.bench.perplexity import (
    CACHES,
    WEIGHTS,
    measure_quality,
    python_manual,
    quality_table,
)
from replicas.bench.report import WorkloadResult, figures_of, save, static_figures, table
from replicas.bench.speculation import speculation_table
from replicas.bench.static_baseline import continuous_steps, run_static, static_steps
from replicas.bench.step_split import split_table
from replicas.bench.swaps import swaps_table
from replicas.bench.workload import FILES, WARM_UP, WorkloadRequest, read_workload, root_of
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.engine_info import EngineInfo
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.speculation.config import SpeculationConfig
from replicas.team_cores import bind_own_process, num_allowed_cores

BATCH_CAP = 32
WITH_STATIC = ("W1", "W2")


def main() -> int:
    """Parse the command line, run what it names."""
    options = _parser().parse_args()
    folder = Path(options.workloads)
    if not folder.is_dir():
        print(f"--workloads {folder}: no such folder", file=sys.stderr)
        return 2
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    config = _config(options, model)
    bind_own_process(config.num_threads)
    engine, info = build_engine(config)
    print(f"{info}\n", flush=True)
    run_workload(
        engine, read_workload(folder / WARM_UP, model, scale=1.0), root_of(model, info.block_size)
    )
    results = []
    for name in () if options.no_workloads else options.only or FILES:
        requests = read_workload(folder / FILES[name], model, scale=options.scale)
        passes = [
            _pass(engine, info, name, requests, root_of(model, info.block_size), options)
            for _ in range(options.runs)
        ]
        results.append(WorkloadResult(name, tuple(passes)))
        print(table(results[-1:]), flush=True)
    engine.close()
    if results:
        print("\n" + table(results))
    if options.busy_parent:
        requests = read_workload(folder / FILES["W1"], model, scale=1.0)[:BATCH_CAP]
        times = measure_busy_parent(config, requests, root_of(model, info.block_size))
        print("\n" + times.table())
    for text in _further_tables(options, model, config):
        print("\n" + text, flush=True)
    if results:
        save(Path(options.output), _machine(info), results)
        print(f"\nsaved to {options.output}")
    return 0


def _further_tables(
    options: argparse.Namespace, model: PreparedModel, config: EngineConfig
) -> Iterator[str]:
    """The measurements that need no workload, as far as they were asked for."""
    if options.split:
        yield split_table(model, config)
    if options.forks:
        yield forks_table(model, config)
    if options.moves:
        yield moves_table(model, config)
    if options.swaps:
        yield swaps_table(model, config)
    if options.speculation:
        yield speculation_table(model, config)
    if options.perplexity:
        passages = python_manual(model, options.perplexity)
        precisions = CACHES if config.quantization == "none" else WEIGHTS
        yield quality_table(measure_quality(model, config, passages, precisions))
    if options.agreement:
        passages = python_manual(model, options.agreement)
        prompts = [passage[:PROMPT_TOKENS] for passage in passages]
        yield agreement_table(greedy_agreement(model, config, prompts))


def _pass(
    engine: Engine,
    info: EngineInfo,
    name: str,
    requests: list[WorkloadRequest],
    root: bytes,
    options: argparse.Namespace,
) -> dict[str, float]:
    run: Run = run_workload(engine, requests, root)
    figures = figures_of(run, max_model_len=info.max_model_len)
    if name in WITH_STATIC and not options.no_static:
        promised = static_steps(requests, BATCH_CAP) / continuous_steps(requests, BATCH_CAP)
        static = run_static(engine, requests, root, batch_size=BATCH_CAP)
        figures |= static_figures(run, static, promised)
    return figures


def _config(options: argparse.Namespace, model: PreparedModel) -> EngineConfig:
    scheduler = SchedulerConfig(
        max_num_seqs=BATCH_CAP,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=min(2048, model.max_model_len),
        async_scheduling=not options.no_async_scheduling,
        enable_prefix_caching=not options.no_prefix_caching,
        speculation=SpeculationConfig(speculative_method=options.speculative_method),
    )
    return EngineConfig(
        model=model.folder,
        scheduler=scheduler,
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        kernels=options.kernels,
        deterministic=options.deterministic,
        num_threads=options.threads or num_allowed_cores(),
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
    )


def _machine(info: EngineInfo) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "engine": asdict(info),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m replicas.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(FILES), help="run this one")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each file's requests")
    parser.add_argument("--runs", type=int, default=1, help="passes over each workload")
    parser.add_argument("--workloads", default=_default_workloads(), help="folder of JSONL files")
    parser.add_argument("--model", default="demo", help="what `pagoda serve --model` takes")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")
    parser.add_argument("--output", default="results/bench.json", help="where figures are saved")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=2 << 30)
    parser.add_argument("--threads", type=int, default=0, help="0 means every core")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--quantization", default="none", help="none or int8")
    parser.add_argument("--kv-cache-dtype", default="auto", help="auto, bf16, int8 or fp8")
    parser.add_argument("--kernels", default="auto", help="auto, reference, cpu or triton")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--no-async-scheduling", action="store_true")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--no-static", action="store_true", help="leave the static baseline out")
    parser.add_argument("--no-workloads", action="store_true", help="only what follows")
    parser.add_argument("--busy-parent", action="store_true", help="steps beside a busy loop")
    parser.add_argument("--split", action="store_true", help="also print where a step's time goes")
    parser.add_argument("--forks", action="store_true", help="n=8 beside eight requests")
    parser.add_argument("--moves", action="store_true", help="what it costs to move a block")
    parser.add_argument("--swaps", action="store_true", help="swap against recompute over length")
    parser.add_argument("--speculation", action="store_true", help="guessing tokens, or not")
    parser.add_argument(
        "--speculative-method", default="off", help="in the workloads: off, ngram or auto"
    )
    parser.add_argument(
        "--perplexity",
        type=int,
        nargs="?",
        const=4,
        default=0,
        metavar="PASSAGES",
        help="what each type of KV cache costs, on 1,024 tokens of each passage (4); or, with "
        "--quantization, what that costs",
    )
    parser.add_argument(
        "--agreement",
        type=int,
        nargs="?",
        const=16,
        default=0,
        metavar="PROMPTS",
        help="how often int8 weights choose the same next token as exact ones (16)",
    )
    return parser


def _default_workloads() -> str:
    shared = os.environ.get("PAGODA_SHARED_DIR", "../shared")
    return str(Path(shared) / "workloads")


if __name__ == "__main__":
    sys.exit(main())
