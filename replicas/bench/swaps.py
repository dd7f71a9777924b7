"""Measures swap against recompute over length, and how often the engine's choice is the right one.

Both sides are measured on this machine; a link slower than its memory is taken at its nominal
speed, so that there is a crossover to look at (lecture 10, exercise 4).
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replicas.batch import Batch, BlockMove, CopyIn, CopyOut, SampleSpec
from replicas.config import EngineConfig
from replicas.memory.host_buffer import HostBuffer
from replicas.memory.move_costs import BlockCost, MoveCosts
from replicas.model_runner import ModelRunner
from replicas.models.model_config import ModelConfig
from replicas.models.prefill_cost import prefill_cost
from replicas.models.prepared_model import PreparedModel
from replicas.request import SamplingParams

LENGTHS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536)
# Speeds of links beside the one that breaks even at the middle length.
LINKS = (8.0, 4.0, 2.0, 1.4, 0.7, 0.5, 0.25, 0.125)
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class SwapSample:
    """Medians for one length: a prefill, and the copies of its blocks out and back, in seconds."""

    num_tokens: int
    prefill_s: float
    copies_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """Where blocks go to; bytes_per_s of 0 is host memory as measured."""

    name: str
    bytes_per_s: float = 0.0


def swaps_table(model: PreparedModel, config: EngineConfig) -> str:
    """Curves and choices as Markdown."""
    runner = ModelRunner(model, config)
    lengths = [length for length in LENGTHS if length <= runner.max_model_len]
    num_slots = -(-max(lengths) // config.scheduler.block_size)
    buffer = HostBuffer.create(num_slots=num_slots, slot_bytes=runner.layout.payload_bytes)
    runner.bind_host_buffer(buffer)
    cost = BlockCost(
        prefill_cost(ModelConfig.load(model.folder, name=model.name)),
        config.scheduler.block_size,
        runner.layout.payload_bytes,
    )
    samples = [_measure(runner, config, length) for length in lengths]
    runner.close()
    buffer.close()
    return "\n".join([*_curves(samples, cost), "", *_choices(samples, cost)])


def _measure(runner: ModelRunner, config: EngineConfig, num_tokens: int) -> SwapSample:
    size, budget = config.scheduler.block_size, config.scheduler.max_num_batched_tokens
    num_blocks = -(-num_tokens // size)

    def prefill() -> None:
        for start in range(0, num_tokens, budget):
            stop = min(start + budget, num_tokens)
            runner.run(_prefill_batch(start, stop, size), lambda: None)

    def copies() -> None:
        outs: list[BlockMove] = [CopyOut(block, block) for block in range(num_blocks)]
        ins: list[BlockMove] = [CopyIn(slot, slot) for slot in range(num_blocks)]
        runner.run(_prefill_batch(0, 0, size, tuple(outs)), lambda: None)
        runner.run(_prefill_batch(0, 0, size, tuple(ins)), lambda: None)

    # The first use of memory costs page faults that no later one does.
    copies()
    return SwapSample(num_tokens, _median_s(prefill), _median_s(copies))


def _median_s(act: Callable[[], None]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _curves(samples: list[SwapSample], cost: BlockCost) -> list[str]:
    lines = [
        "| tokens | prefill ms | out and back ms | break-even link MiB/s |",
        "|---|---|---|---|",
    ]
    for one in samples:
        even = _break_even_bytes_per_s(one, cost) / 2**20
        lines.append(
            f"| {one.num_tokens} | {1e3 * one.prefill_s:.1f} | {1e3 * one.copies_s:.2f} "
            f"| {even:.1f} |"
        )
    return lines


def _break_even_bytes_per_s(one: SwapSample, cost: BlockCost) -> float:
    """Out and back at this speed takes as long as the prefill did."""
    return 2 * one.num_tokens * cost.bytes_per_token / one.prefill_s


def _choices(samples: list[SwapSample], cost: BlockCost) -> list[str]:
    lines = [
        "| link | tokens for which it swaps | choices right | costliest wrong choice |",
        "|---|---|---|---|",
    ]
    middle = statistics.median(_break_even_bytes_per_s(one, cost) for one in samples)
    links = [Link("host memory")]
    links += [Link(f"{factor * middle / 2**20:.1f} MiB/s", factor * middle) for factor in LINKS]
    num_right = num_all = 0
    for link in links:
        costs = _costs_of(samples, cost, link)
        right, loss = 0, 0.0
        for one in samples:
            move_s = _move_s(one, cost, link)
            estimate = costs.swap(one.num_tokens, num_kept_tokens=0)
            taken_s = move_s if estimate.choice == "move" else one.prefill_s
            best_s = min(move_s, one.prefill_s)
            right += taken_s == best_s
            loss = max(loss, taken_s / best_s - 1.0)
        num_right += right
        num_all += len(samples)
        swapped = _side(costs, [one.num_tokens for one in samples])
        lines.append(f"| {link.name} | {swapped} | {right} of {len(samples)} | {loss:.0%} |")
    lines.append(f"\n{num_right} of {num_all} choices right ({num_right / num_all:.0%}).")
    return lines


def _costs_of(samples: list[SwapSample], cost: BlockCost, link: Link) -> MoveCosts:
    """What an engine would have measured after serving all of these."""
    costs = MoveCosts(cost, clock=lambda: 0.0)
    for one in samples:
        num_blocks = -(-one.num_tokens // cost.block_size)
        costs.note_step([(0, one.num_tokens)], seconds=one.prefill_s)
        costs.note_copies(2 * num_blocks, seconds=_move_s(one, cost, link))
    return costs


def _move_s(one: SwapSample, cost: BlockCost, link: Link) -> float:
    if not link.bytes_per_s:
        return one.copies_s
    num_blocks = -(-one.num_tokens // cost.block_size)
    return one.copies_s + 2 * num_blocks * cost.block_bytes / link.bytes_per_s


def _side(costs: MoveCosts, lengths: list[int]) -> str:
    """For which lengths the engine moves: one run of them, since the formula is a quadratic."""
    moved = [n for n in lengths if costs.swap(n, num_kept_tokens=0).choice == "move"]
    return f"{moved[0]} to {moved[-1]}" if moved else "none"


def _prefill_batch(
    start: int, stop: int, block_size: int, moves: tuple[BlockMove, ...] = ()
) -> Batch:
    """Tokens `start` to `stop` of one request in the first blocks, or moves alone."""
    num_tokens = stop - start
    num_rows = 1 if num_tokens else 0
    tables = np.arange(-(-stop // block_size), dtype=np.int32)[None][:num_rows]
    positions = np.arange(start, stop, dtype=np.int64)
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    return Batch(
        step=0,
        token_ids=np.ones(num_tokens, dtype=np.int64),
        positions=positions,
        slot_mapping=positions,
        query_start=np.array([0, num_tokens][: num_rows + 1], dtype=np.int32),
        context_lens=np.array([stop][:num_rows], dtype=np.int32),
        block_tables=tables,
        slots=np.zeros(num_rows, dtype=np.int32),
        samples=tuple(SampleSpec(row, greedy, 0, stop) for row in range(num_rows)),
        moves=moves,
    )
