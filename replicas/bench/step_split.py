"""Where the time of a step goes: linear layers, attention, the rest, outside the kernels."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replicas.batch import Batch, SampleSpec
from replicas.config import EngineConfig
from replicas.kernels.interface import Kernels
from replicas.kernels.timed import StepBreakdown, TimedKernels
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel
from replicas.request import SamplingParams

CONTEXT_TOKENS = 200
REPEATS = 15


@dataclass(frozen=True, slots=True)
class StepShape:
    """Rows of a step: `num_rows` requests, each with `num_tokens` new tokens."""

    name: str
    num_rows: int
    num_tokens: int


SHAPES = (
    StepShape("decode T=1", 1, 1),
    StepShape("decode T=8", 8, 1),
    StepShape("decode T=16", 16, 1),
    StepShape("decode T=32", 32, 1),
    StepShape("prefill T=128", 1, 128),
    StepShape("prefill T=512", 1, 512),
)


def split_table(model: PreparedModel, config: EngineConfig) -> str:
    """Medians of each part in milliseconds, as a Markdown table, one row a shape.

    With one thread it is the time that this thread had the core, so that a shared machine gives the
    same figures as a quiet one; with more it is the time on the wall.
    """
    clock = time.thread_time if config.num_threads == 1 else time.perf_counter
    wrapped: list[TimedKernels] = []

    def wrap(kernels: Kernels) -> Kernels:
        wrapped.append(TimedKernels(kernels, clock))
        return wrapped[0]

    runner = ModelRunner(model, config, wrap_kernels=wrap)
    lines = [
        "| step | ms | linear | attention | KV write | planning | norms etc. | outside |",
        "|---" * 8 + "|",
    ]
    for shape in SHAPES:
        batch = _batch(shape, config.scheduler.block_size)
        runner.run(batch, lambda: None)
        wrapped[0].take()
        samples = [_time(runner, batch, wrapped[0], clock) for _ in range(REPEATS)]
        lines.append(_row(shape, samples))
    runner.close()
    return "\n".join(lines)


def _time(
    runner: ModelRunner, batch: Batch, kernels: TimedKernels, clock: Callable[[], float]
) -> tuple[float, StepBreakdown]:
    started = clock()
    runner.run(batch, lambda: None)
    return clock() - started, kernels.take()


def _row(shape: StepShape, samples: list[tuple[float, StepBreakdown]]) -> str:
    def median_ms(values: list[float]) -> str:
        return f"{1e3 * statistics.median(values):.2f}"

    parts = ("linear_s", "attention_s", "store_s", "plan_s", "other_s")
    cells = [shape.name, median_ms([total for total, _split in samples])]
    cells += [median_ms([getattr(split, part) for _total, split in samples]) for part in parts]
    cells.append(median_ms([total - split.total_s for total, split in samples]))
    return "| " + " | ".join(cells) + " |"


def _batch(shape: StepShape, block_size: int) -> Batch:
    """Rows in blocks of their own; decode rows have CONTEXT_TOKENS tokens before them."""
    before = CONTEXT_TOKENS if shape.num_tokens == 1 else 0
    context = before + shape.num_tokens
    blocks_each = -(-context // block_size)
    tables = np.arange(shape.num_rows * blocks_each, dtype=np.int32).reshape(shape.num_rows, -1)
    positions = np.arange(before, context, dtype=np.int64)
    slots = tables[:, positions // block_size].astype(np.int64) * block_size
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    return Batch(
        step=0,
        token_ids=np.ones(shape.num_rows * shape.num_tokens, dtype=np.int64),
        positions=np.tile(positions, shape.num_rows),
        slot_mapping=(slots + positions % block_size).reshape(-1),
        query_start=np.arange(shape.num_rows + 1, dtype=np.int32) * shape.num_tokens,
        context_lens=np.full(shape.num_rows, context, dtype=np.int32),
        block_tables=tables,
        slots=np.arange(shape.num_rows, dtype=np.int32),
        samples=tuple(SampleSpec(row, greedy, 0, context) for row in range(shape.num_rows)),
    )
