"""What a store costs that nobody gains from: throughput with each write-back policy, by turns.

All prompts are new, so every look-up is a miss and every block that is written is never read.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster.bench.local_cluster import LocalCluster, local_cluster
from cluster.bench.prompts import Prompts
from cluster.config import ClusterConfig
from cluster.launch.embedded_store import EmbeddedStore
from kvstore.config import StoreConfig
from replicas.config import EngineConfig, SchedulerConfig, WriteBackPolicy
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel

# None: no store at all.
ARMS: tuple[WriteBackPolicy | None, ...] = (None, "never", "on_eviction", "on_second_use", "always")


@dataclass
class Arm:
    """One cluster of one replica, and its output tokens per second in each round."""

    write_back: WriteBackPolicy | None
    cluster: LocalCluster
    rates: list[float] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--rounds", type=int, default=5, help="of all arms in turn")
    parser.add_argument("--requests", type=int, default=32, help="of each arm and round")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table."""
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedStore(memory_bytes=1 << 30, folder=Path(folder))
        server.start()
        try:
            arms = asyncio.run(_measure_all(model, options, server.url))
        finally:
            server.close()
    print(table(arms, options))
    return 0


async def _measure_all(
    model: PreparedModel, options: argparse.Namespace, redis_url: str
) -> list[Arm]:
    """Every arm's engine is up all the time, since an idle one costs nothing."""
    prompts = Prompts(model)
    async with contextlib.AsyncExitStack() as ends:
        arms = [
            Arm(
                write_back,
                await ends.enter_async_context(
                    local_cluster(
                        _config(model, write_back, redis_url), fingerprint=model.fingerprint
                    )
                ),
            )
            for write_back in ARMS
        ]
        for number in range(options.rounds + 1):
            for arm in arms:
                rate = await _round(arm.cluster, prompts, options)
                # The first round warms every engine up.
                if number:
                    arm.rates.append(rate)
    return arms


def _config(
    model: PreparedModel, write_back: WriteBackPolicy | None, redis_url: str
) -> ClusterConfig:
    engine = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(max_num_seqs=32, store_write_back=write_back or "never"),
        kv_cache_memory_bytes=256 * 1024 * 1024,
    )
    store = StoreConfig(redis_url=redis_url if write_back else "")
    return ClusterConfig(engine=engine, store=store)


async def _round(cluster: LocalCluster, prompts: Prompts, options: argparse.Namespace) -> float:
    """Output tokens per second of requests that all come at once."""
    requests = [
        prompts.new(options.prompt_tokens, max_tokens=options.output_tokens)
        for _ in range(options.requests)
    ]
    began_at = time.perf_counter()
    await asyncio.gather(*(cluster.time(request) for request in requests))
    num_tokens: int = options.requests * options.output_tokens
    return num_tokens / (time.perf_counter() - began_at)


def table(arms: list[Arm], options: argparse.Namespace) -> str:
    """One line an arm; a round's rates are compared with that round's rate without a store."""
    lines = [
        f"{options.requests} requests of {options.prompt_tokens} + {options.output_tokens} tokens, "
        f"{options.rounds} rounds of all arms in turn; ratios within a round",
        f"{'store':<16}{'tokens/s':>10}{'ratio':>8}{'lowest':>8}{'highest':>9}",
    ]
    base = arms[0].rates
    for arm in arms:
        ratios = [rate / without for rate, without in zip(arm.rates, base, strict=True)]
        lines.append(
            f"{arm.write_back or 'none':<16}{statistics.median(arm.rates):>10.1f}"
            f"{statistics.median(ratios):>8.3f}{min(ratios):>8.3f}{max(ratios):>9.3f}"
        )
    return "\n".join(lines)
