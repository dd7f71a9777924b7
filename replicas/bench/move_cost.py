"""What it costs to move a block: to another one, out to host memory, and back in."""

import random
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from replicas.batch import Batch, BlockMove, CopyBlock, CopyIn, CopyOut
from replicas.config import EngineConfig
from replicas.memory.host_buffer import HostBuffer
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel

# Blocks of one batch of moves, and how many such batches.
_MOVES, _REPEATS = 64, 30


def moves_table(model: PreparedModel, config: EngineConfig) -> str:
    """Medians in microseconds a block, and GiB of payload a second, as a Markdown table.

    Blocks and slots in random order, batches of 64 moves: what a preemption of 1,024 tokens is.
    """
    runner = ModelRunner(model, config)
    layout = runner.layout
    num_blocks = min(runner.num_blocks, 8 * _MOVES)
    buffer = HostBuffer.create(num_slots=num_blocks, slot_bytes=layout.payload_bytes)
    runner.bind_host_buffer(buffer)
    # The first use of memory costs page faults that no later one does.
    buffer.slots[:] = 1
    runner.run(_only([CopyIn(index, index) for index in range(num_blocks)]), lambda: None)
    deck = random.Random(0)
    lines = [
        f"| move of {layout.payload_bytes / 1024:.1f} KiB | µs a block | GiB/s |",
        "|---|---|---|",
    ]

    def pick() -> list[int]:
        return deck.sample(range(num_blocks), _MOVES)

    def copies() -> Sequence[BlockMove]:
        blocks = deck.sample(range(num_blocks), 2 * _MOVES)
        return [CopyBlock(*pair) for pair in zip(blocks[::2], blocks[1::2], strict=True)]

    def outs() -> Sequence[BlockMove]:
        return [CopyOut(block, slot) for block, slot in zip(pick(), pick(), strict=True)]

    def ins() -> Sequence[BlockMove]:
        return [CopyIn(slot, block) for slot, block in zip(pick(), pick(), strict=True)]

    kinds: Sequence[tuple[str, Callable[[], Sequence[BlockMove]]]] = [
        ("block to block", copies),
        ("out to host memory", outs),
        ("in from host memory", ins),
    ]
    # In turn, so that a busy moment of the machine does not fall on one kind alone.
    seconds: dict[str, list[float]] = {name: [] for name, _make in kinds}
    for _repeat in range(_REPEATS):
        for name, make in kinds:
            started = time.perf_counter()
            runner.run(_only(make()), lambda: None)
            seconds[name].append((time.perf_counter() - started) / _MOVES)
    for name, samples in seconds.items():
        median_s = statistics.median(samples)
        gib_per_s = layout.payload_bytes / median_s / 2**30
        lines.append(f"| {name} | {1e6 * median_s:.1f} | {gib_per_s:.1f} |")
    runner.close()
    buffer.close()
    return "\n".join(lines)


def _only(moves: Sequence[BlockMove]) -> Batch:
    """A batch without rows."""
    longs, ints = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return Batch(
        step=0,
        token_ids=longs,
        positions=longs,
        slot_mapping=longs,
        query_start=np.zeros(1, dtype=np.int32),
        context_lens=ints,
        block_tables=ints.reshape(0, 0),
        slots=ints,
        samples=(),
        moves=tuple(moves),
    )
