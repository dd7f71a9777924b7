"""The price of distribution on one machine: two replicas of one thread against one of two."""

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np

from cluster.bench.local_cluster import Timing, local_cluster
from cluster.bench.prompts import Prompts
from cluster.config import ClusterConfig, ReplicaConfig
from replicas.config import EngineConfig, SchedulerConfig
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel

# Replicas, and threads of each.
LAYOUTS = ((1, 2), (2, 1))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--rounds", type=int, default=2, help="of both layouts in turn")
    parser.add_argument("--requests", type=int, default=48, help="of each layout and round")
    parser.add_argument("--clients", type=int, default=8, help="requests at once")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table."""
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    timings: dict[tuple[int, int], list[Timing]] = {layout: [] for layout in LAYOUTS}
    walls_s = dict.fromkeys(LAYOUTS, 0.0)
    for _ in range(options.rounds):
        for layout, into in timings.items():
            walls_s[layout] += asyncio.run(measure(layout, model, options, into))
    print(table(timings, walls_s, options))
    return 0


async def measure(
    layout: tuple[int, int],
    model: PreparedModel,
    options: argparse.Namespace,
    into: list[Timing],
) -> float:
    """Seconds that all requests took."""
    num_replicas, num_threads = layout
    engine = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(max_num_seqs=32, store_write_back="never"),
        num_threads=num_threads,
        kv_cache_memory_bytes=256 * 1024 * 1024,
    )
    config = ClusterConfig(engine=engine, replica=ReplicaConfig(num_replicas=num_replicas))
    prompts, left = Prompts(model), iter(range(options.requests))
    async with local_cluster(config, fingerprint=model.fingerprint) as made:

        async def one_client() -> None:
            for _ in left:
                request = prompts.new(options.prompt_tokens, max_tokens=options.output_tokens)
                into.append(await made.time(request))

        began_at = time.perf_counter()
        await asyncio.gather(*(one_client() for _ in range(options.clients)))
        return time.perf_counter() - began_at


def table(
    timings: dict[tuple[int, int], list[Timing]],
    walls_s: dict[tuple[int, int], float],
    options: argparse.Namespace,
) -> str:
    """One line a layout."""
    lines = [
        f"{options.clients} clients, {options.prompt_tokens} + {options.output_tokens} tokens, "
        f"{options.rounds} rounds of {options.requests} requests, layouts in turn",
        "replicas x threads  output tokens/s  TTFT p50 ms  TPOT p50 ms",
    ]
    for (num_replicas, num_threads), of in timings.items():
        rate = len(of) * options.output_tokens / walls_s[num_replicas, num_threads]
        lines.append(
            f"{num_replicas} x {num_threads} {rate:29.1f} "
            f"{1000 * float(np.median([each.ttft_s for each in of])):12.0f} "
            f"{1000 * float(np.median([each.tpot_s for each in of])):12.1f}"
        )
    return "\n".join(lines)
