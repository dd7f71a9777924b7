"""What long prompts do to running requests: in two pools, in chunks, and in one piece.

Steady requests are decoded all the time; in every second phase of a layout a long prompt arrives
each few seconds (lecture 11, 11.8). A layout's own quiet phases are what it is compared with.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from cluster.bench.local_cluster import LocalCluster, Timing, local_cluster
from cluster.bench.prompts import Prompts
from cluster.config import ClusterConfig, ReplicaConfig
from cluster.handoff.pair_dispatcher import PairDispatcher
from cluster.launch.embedded_store import EmbeddedStore
from cluster.pools.pool_config import HandoffConfig, PoolConfig
from kvstore.config import StoreConfig
from replicas.config import EngineConfig, SchedulerConfig
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel

LayoutName = Literal["pools", "chunked", "unchunked"]


@dataclass
class Measured:
    """Steady requests of one layout, with and without long prompts beside them."""

    quiet: list[Timing] = field(default_factory=list)
    disturbed: list[Timing] = field(default_factory=list)
    long_ttft_s: list[float] = field(default_factory=list)
    handoffs: Counter[str] = field(default_factory=Counter)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--rounds", type=int, default=1, help="of all layouts in turn")
    parser.add_argument("--phase-s", type=float, default=30.0, help="length of each phase")
    parser.add_argument("--steady", type=int, default=4, help="requests that run all the time")
    parser.add_argument("--steady-tokens", type=int, default=48, help="output of each")
    parser.add_argument("--long-tokens", type=int, default=1024)
    parser.add_argument("--every-s", type=float, default=5.0, help="between two long prompts")
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument(
        "--disaggregation", choices=("auto", "always"), default="always", help="in the pools"
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table."""
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    measured = {name: Measured() for name in get_args(LayoutName)}
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedStore(memory_bytes=1 << 30, folder=Path(folder))
        server.start()
        try:
            for _ in range(options.rounds):
                for name, into in measured.items():
                    config = layout(name, model, options, server.url)
                    asyncio.run(measure(config, model, options, into))
        finally:
            server.close()
    print(table(measured, options))
    return 0


def layout(
    name: LayoutName, model: PreparedModel, options: argparse.Namespace, redis_url: str
) -> ClusterConfig:
    """Two replicas of one thread each, of one kind or of two."""
    budget = options.chunk_tokens if name == "chunked" else 2 * options.long_tokens
    engine = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(
            max_num_seqs=32, max_num_batched_tokens=budget, store_write_back="never"
        ),
        num_threads=1,
        kv_cache_memory_bytes=256 * 1024 * 1024,
    )
    config = ClusterConfig(engine=engine, store=StoreConfig(redis_url=redis_url))
    if name != "pools":
        return replace(config, replica=ReplicaConfig(num_replicas=2))
    chunk = 4 * options.chunk_tokens
    return replace(
        config,
        handoff=HandoffConfig(disaggregation=options.disaggregation),
        prefill=PoolConfig(num_replicas=1, max_num_batched_tokens=chunk),
        decode=PoolConfig(num_replicas=1, max_num_batched_tokens=options.chunk_tokens),
    )


async def measure(
    config: ClusterConfig, model: PreparedModel, options: argparse.Namespace, into: Measured
) -> None:
    """A quiet phase and a disturbed one, after a phase of warming up."""
    async with local_cluster(config, fingerprint=model.fingerprint) as cluster:
        prompts = Prompts(model)
        await _phase(cluster, prompts, options, phase_s=2.0, into=[])
        await _phase(cluster, prompts, options, phase_s=options.phase_s, into=into.quiet)
        disturbing = asyncio.create_task(_disturb(cluster, prompts, options, into.long_ttft_s))
        await _phase(cluster, prompts, options, phase_s=options.phase_s, into=into.disturbed)
        await disturbing
        if isinstance(cluster.dispatcher, PairDispatcher):
            into.handoffs.update(cluster.dispatcher.decisions)
            into.handoffs.update(cluster.dispatcher.results)


async def _phase(
    cluster: LocalCluster,
    prompts: Prompts,
    options: argparse.Namespace,
    *,
    phase_s: float,
    into: list[Timing],
) -> None:
    clock = asyncio.get_running_loop().time
    ends_at = clock() + phase_s

    async def one_client() -> None:
        while clock() < ends_at:
            request = prompts.new(32, max_tokens=options.steady_tokens)
            into.append(await cluster.time(request))

    await asyncio.gather(*(one_client() for _ in range(options.steady)))


async def _disturb(
    cluster: LocalCluster, prompts: Prompts, options: argparse.Namespace, into: list[float]
) -> None:
    tasks = []
    for _ in range(max(1, int(options.phase_s / options.every_s))):
        request = prompts.new(options.long_tokens, max_tokens=4)
        tasks.append(asyncio.create_task(cluster.time(request)))
        await asyncio.sleep(options.every_s)
    into.extend(timing.ttft_s for timing in await asyncio.gather(*tasks))


def table(measured: dict[LayoutName, Measured], options: argparse.Namespace) -> str:
    """Milliseconds, and each layout's disturbed phase against its own quiet one."""
    lines = [
        f"{options.steady} steady requests, a prompt of {options.long_tokens} tokens every "
        f"{options.every_s:g} s, 2 replicas of 1 thread, {options.rounds} rounds of "
        f"{options.phase_s:g} s a phase, disaggregation {options.disaggregation}",
        "layout     TPOT p99 quiet  disturbed  ratio   gap p99 quiet  disturbed   long TTFT p50",
    ]
    for name, of in measured.items():
        quiet, disturbed = _p99_tpot_ms(of.quiet), _p99_tpot_ms(of.disturbed)
        lines.append(
            f"{name:10} {quiet:14.1f} {disturbed:10.1f} {disturbed / quiet:6.2f} "
            f"{_p99_gap_ms(of.quiet):15.1f} {_p99_gap_ms(of.disturbed):10.1f} "
            f"{1000 * float(np.median(of.long_ttft_s)):15.0f}"
        )
        if of.handoffs:
            counts = " ".join(f"{what}={count}" for what, count in sorted(of.handoffs.items()))
            lines.append(f"           decisions and results: {counts}")
    return "\n".join(lines)


def _p99_tpot_ms(timings: list[Timing]) -> float:
    return 1000 * float(np.percentile([timing.tpot_s for timing in timings], 99))


def _p99_gap_ms(timings: list[Timing]) -> float:
    return 1000 * float(np.percentile([gap for each in timings for gap in each.gaps_s], 99))
