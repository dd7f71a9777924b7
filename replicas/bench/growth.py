"""Shows how throughput and scheduling grow with running requests, with context and with prompts."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from replicas.bench.measure import run_workload
from replicas.bench.one_turn import with_settings
from replicas.bench.prompt_skipping import PromptSkippingRunner
from replicas.bench.workload import WorkloadRequest, root_of
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.model_runner import ModelRunner
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.runner import Runner

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXT_TOKENS = (128, 512, 2048, 8192)
WARM_UP_STEPS = 4
PROMPT_RUNS = 3
# Beyond the watermark and the blocks that requests find free to be admitted.
_SPARE_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class DecodeCell:
    """Decode steps with so many running requests, each at the end of a context of so many tokens.

    step_s: from one step's tokens to the next one's. scheduler_s: of the engine's own work in a
    step, planning and delivery, most of which hides behind the step before. All medians.
    """

    num_requests: int
    context_tokens: int
    step_s: float
    scheduler_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests together."""
        return self.num_requests / self.step_s


@dataclass(frozen=True, slots=True)
class PromptCell:
    """One prompt alone, in chunks of the step budget. seconds: to its first token, the median."""

    prompt_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens computed a second."""
        return self.prompt_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Growth:
    """All cells, and whether a cell was left out because its context does not fit in memory."""

    decode: tuple[DecodeCell, ...]
    prompts: tuple[PromptCell, ...]
    num_left_out: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables and save the figures."""
    options = _parser().parse_args(arguments)
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    config = with_settings(
        EngineConfig(model=model.folder, kv_cache_memory_bytes=options.kv_cache_memory_bytes),
        options.set,
    )
    longest = min(options.max_context_tokens, model.max_model_len)
    growth = measure_growth(
        model,
        config,
        requests=tuple(n for n in REQUESTS if n <= options.max_requests),
        contexts=tuple(n for n in CONTEXT_TOKENS if n <= longest),
        num_steps=options.steps,
    )
    table = growth_table(growth)
    print(table)
    path = Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**asdict(growth), "table": table}, indent=2))
    return 0


def measure_growth(
    model: PreparedModel,
    config: EngineConfig,
    *,
    requests: Sequence[int],
    contexts: Sequence[int],
    num_steps: int,
) -> Growth:
    """Every pair of `requests` and `contexts` that memory holds, num_steps measured steps each.

    config's caps on requests, tokens and length are replaced by what the pairs need.
    """
    cells = [(n, context) for context in contexts for n in requests]
    served = replace(config.scheduler, max_num_seqs=max(requests), max_model_len=max(contexts))
    served = replace(served, max_num_batched_tokens=max(512, *requests))
    thread = ThreadPoolExecutor(1, "runner")
    runner = thread.submit(lambda: ModelRunner(model, replace(config, scheduler=served))).result()
    thread.submit(runner.warm_up).result()
    capacity_tokens = int((1 - _SPARE_SHARE) * runner.num_blocks * served.block_size)
    fitting = [(n, context) for n, context in cells if n * context <= capacity_tokens]
    # All prompts in one step, so that every request has come equally far.
    at_once = replace(served, max_num_batched_tokens=max(capacity_tokens, *requests))
    root, rng = root_of(model, served.block_size), np.random.default_rng(0)
    out_tokens = WARM_UP_STEPS + num_steps + 1
    engine = _engine(at_once, PromptSkippingRunner(runner), runner.num_blocks, thread)
    decode = tuple(
        _decode_cell(
            engine,
            _prompts(rng, model, n, in_tokens=context - out_tokens, out_tokens=out_tokens),
            root,
        )
        for n, context in fitting
    )
    # The first engine is not closed: that would end the thread of the second.
    engine = _engine(served, runner, runner.num_blocks, thread)
    prompts = tuple(
        _prompt_cell(
            engine, _prompts(rng, model, PROMPT_RUNS, in_tokens=context - 1, out_tokens=1), root
        )
        for context in contexts
    )
    engine.close()
    return Growth(decode, prompts, len(cells) - len(fitting))


def growth_table(growth: Growth) -> str:
    """Both parts as Markdown; a column for each context, a dash where memory ends."""
    contexts = sorted({cell.context_tokens for cell in growth.decode})
    by_place = {(cell.num_requests, cell.context_tokens): cell for cell in growth.decode}
    titles = [f"{context:,} tokens" for context in contexts]
    lines = ["Output tokens/s; microseconds of scheduling a step:", ""]
    lines += [_line(["running requests", *titles]), _line(["---"] * (len(titles) + 1))]
    for num_requests in sorted({cell.num_requests for cell in growth.decode}):
        cells = [by_place.get((num_requests, context)) for context in contexts]
        lines.append(_line([str(num_requests), *(_figures(cell) for cell in cells)]))
    lines += ["", _line(["prompt tokens", "seconds", "tokens/s"]), _line(["---"] * 3)]
    for prompt in growth.prompts:
        figures = [f"{prompt.seconds:.3f}", f"{prompt.tokens_per_s:.0f}"]
        lines.append(_line([f"{prompt.prompt_tokens:,}", *figures]))
    return "\n".join(lines)


def _figures(cell: DecodeCell | None) -> str:
    return f"{cell.tokens_per_s:.0f}; {1e6 * cell.scheduler_s:.0f}" if cell else "-"


def _engine(
    config: SchedulerConfig, runner: Runner, num_blocks: int, thread: ThreadPoolExecutor
) -> Engine:
    return Engine(
        replace(config, num_blocks=num_blocks), runner, clock=time.perf_counter, thread=thread
    )


def _decode_cell(engine: Engine, prompts: list[WorkloadRequest], root: bytes) -> DecodeCell:
    run = run_workload(engine, prompts, root)
    full = [step for step in run.steps if step.num_decode_tokens == len(prompts)]
    measured = full[WARM_UP_STEPS:]
    gaps_s = [later.at - sooner.at for sooner, later in pairwise(measured)]
    return DecodeCell(
        num_requests=len(prompts),
        context_tokens=len(prompts[0].prompt_token_ids) + prompts[0].output_tokens,
        step_s=statistics.median(gaps_s),
        scheduler_s=statistics.median(step.plan_s + step.deliver_s for step in measured),
    )


def _prompt_cell(engine: Engine, prompts: list[WorkloadRequest], root: bytes) -> PromptCell:
    seconds = [run_workload(engine, [prompt], root).seconds for prompt in prompts]
    return PromptCell(len(prompts[0].prompt_token_ids), statistics.median(seconds))


def _prompts(
    rng: np.random.Generator, model: PreparedModel, number: int, *, in_tokens: int, out_tokens: int
) -> list[WorkloadRequest]:
    ids = rng.integers(0, model.vocab_size, (number, in_tokens)).tolist()
    return [WorkloadRequest(tuple(prompt), out_tokens) for prompt in ids]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m replicas.bench.growth", description=__doc__)
    parser.add_argument("--max-requests", type=int, default=REQUESTS[-1])
    parser.add_argument("--max-context-tokens", type=int, default=CONTEXT_TOKENS[-1])
    parser.add_argument("--steps", type=int, default=16, help=f"beyond {WARM_UP_STEPS} of warm-up")
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=7 << 30)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")
    parser.add_argument("--output", default="results/growth.json", help="where figures are saved")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
