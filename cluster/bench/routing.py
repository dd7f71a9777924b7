"""Compares routing policies on two mixed replicas whose requests share prefixes.

Popularity of the prefixes is Zipf's, as in the traces of Mooncake; one replica's cache does not
hold them all, so it matters who is asked. Each policy starts with empty caches and has the same
requests.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.bench.local_cluster import LocalCluster, Timing, local_cluster
from cluster.bench.prompts import Prompts
from cluster.config import ClusterConfig, ReplicaConfig
from replicas.config import EngineConfig, SchedulerConfig
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest
from router.config import PolicyName, RouterConfig

POLICIES: tuple[PolicyName, ...] = ("random", "round_robin", "least_loaded", "prefix_affinity")


@dataclass(frozen=True, slots=True)
class Outcome:
    """hit_share: of all prompt tokens, those found in a cache. imbalance: prompt tokens that the
    busier replica computed, against the mean of both."""

    hit_share: float
    mean_ttft_s: float
    imbalance: float
    wall_s: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--requests", type=int, default=80, help="of each policy")
    parser.add_argument("--clients", type=int, default=4, help="requests at once")
    parser.add_argument("--prefixes", type=int, default=16)
    parser.add_argument("--prefix-tokens", type=int, default=384)
    parser.add_argument("--tail-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table."""
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    outcomes = {policy: asyncio.run(measure(policy, model, options)) for policy in POLICIES}
    print(table(outcomes, options))
    return 0


async def measure(policy: PolicyName, model: PreparedModel, options: argparse.Namespace) -> Outcome:
    """All requests under one policy."""
    requests = iter(tuple(requests_of(model, options)))
    timings: list[Timing] = []
    async with local_cluster(
        _config(policy, model, options), fingerprint=model.fingerprint
    ) as made:
        began_at = time.perf_counter()

        async def one_client() -> None:
            for request in requests:
                timings.append(await made.time(request))

        await asyncio.gather(*(one_client() for _ in range(options.clients)))
        return _outcome(made, timings, time.perf_counter() - began_at)


def requests_of(model: PreparedModel, options: argparse.Namespace) -> Iterator[EngineRequest]:
    """The same ones each time: prefixes by Zipf's law, then tokens of their own."""
    prompts, rng = Prompts(model), random.Random(5)
    prefixes = [prompts.tokens(options.prefix_tokens) for _ in range(options.prefixes)]
    weights = [1 / rank for rank in range(1, len(prefixes) + 1)]
    for prefix in rng.choices(prefixes, weights, k=options.requests):
        yield prompts.new(options.tail_tokens, max_tokens=options.output_tokens, prefix=prefix)


def _config(policy: PolicyName, model: PreparedModel, options: argparse.Namespace) -> ClusterConfig:
    block_size = SchedulerConfig().block_size
    # Room for two thirds of the prefixes in each replica, beside what is running.
    cached = 2 * options.prefixes * options.prefix_tokens // 3
    running = options.clients * (options.prefix_tokens + options.tail_tokens + 64)
    engine = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(max_num_seqs=16, store_write_back="never"),
        num_threads=1,
        num_blocks_override=(cached + running) // block_size,
    )
    return ClusterConfig(
        engine=engine,
        replica=ReplicaConfig(num_replicas=2),
        router=RouterConfig(policy=policy),
    )


def _outcome(made: LocalCluster, timings: list[Timing], wall_s: float) -> Outcome:
    stats = [link.report.stats for link in made.directory.links.values()]
    computed = [each.computed_prompt_tokens_total for each in stats]
    return Outcome(
        hit_share=sum(s.hit_tokens_total for s in stats)
        / sum(s.prompt_tokens_total for s in stats),
        mean_ttft_s=sum(timing.ttft_s for timing in timings) / len(timings),
        imbalance=max(computed) * len(computed) / sum(computed),
        wall_s=wall_s,
    )


def table(outcomes: dict[PolicyName, Outcome], options: argparse.Namespace) -> str:
    """One line a policy."""
    lines = [
        f"2 mixed replicas of 1 thread, {options.requests} requests of {options.clients} clients, "
        f"{options.prefixes} prefixes of {options.prefix_tokens} tokens, 2/3 of them fit a cache",
        "policy            hit tokens  mean TTFT ms  imbalance  requests/s",
    ]
    for policy, of in outcomes.items():
        lines.append(
            f"{policy:16} {100 * of.hit_share:10.1f}% {1000 * of.mean_ttft_s:13.0f} "
            f"{of.imbalance:10.2f} {options.requests / of.wall_s:11.2f}"
        )
    return "\n".join(lines)
