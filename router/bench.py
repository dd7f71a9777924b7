"""Measures what a routing decision costs in a large cluster: `python -m router.bench`.

Every figure is of the whole `RequestRouter.choose`: candidates, look-up of the prompt's blocks in
the index, policy, reservation. The prompts take turns: a prefix that every replica holds, one that
each holds another part of, one that a single replica holds, and a miss. Before every decision some
replica's status has just arrived.
"""

import argparse
import hashlib
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from router.config import PolicyName, RouterConfig
from router.pace import StepSample
from router.policies import policy_of
from router.prefixes.kv_events import KvBatch, KvBlocks
from router.prefixes.prefix_index import PrefixIndex
from router.replica_status import ReplicaState, ReplicaStatus
from router.request_router import RequestRouter, Reservation
from router.routing_policy import RoutingRequest

BLOCK_SIZE = 16
PROMPT_BLOCKS = 64
# What an engine tells in one step when a prompt of this many blocks was computed.
BATCH_BLOCKS = 64
TRACED_BLOCKS = 200_000


@dataclass(frozen=True, slots=True)
class Layout:
    """How large the cluster is, and how often each decision is taken."""

    num_replicas: int
    num_blocks: int
    num_decisions: int
    seed: int


@dataclass(frozen=True, slots=True)
class IndexCost:
    """What the index needs. bytes_per_block includes the names, since nobody else keeps them.

    longest_batch_ms: longest time that one batch of changes held its caller up; forget_ms: the same
    for the loss of a replica; longest_tick_ms: the same for a tick that sweeps up behind it.
    """

    num_blocks: int
    bytes_per_block: float
    stored_blocks_per_s: float
    removed_blocks_per_s: float
    longest_batch_ms: float
    forget_ms: float
    longest_tick_ms: float


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """Microseconds of one decision: as a clock sees them, and of the processor alone.

    On a machine that others use too only the latter says what a decision costs.
    """

    policy: str
    p50_us: float
    p99_us: float
    longest_us: float
    cpu_p50_us: float
    cpu_p99_us: float


class Publishers:
    """Replicas that tell an index what they hold, with proper numbers, and are timed."""

    def __init__(self, index: PrefixIndex, num_replicas: int) -> None:
        self.index = index
        self.ids = [f"replica-{number}" for number in range(num_replicas)]
        self._next_number = dict.fromkeys(self.ids, 0)

    def tell(self, replica_id: str, kind: str, names: tuple[bytes, ...]) -> float:
        """One batch of one change; returns the seconds that the index took for it."""
        batch = KvBatch(1, self._next_number[replica_id], (KvBlocks(kind, names),))
        self._next_number[replica_id] += 1
        return _seconds(lambda: self.index.apply(replica_id, batch))

    def tell_all(self, kind: str, num_blocks: int) -> list[float]:
        """So many distinct blocks, a batch to each replica in turn; seconds of each batch."""
        return [
            self.tell(self.ids[turn % len(self.ids)], kind, _names(start))
            for turn, start in enumerate(range(0, num_blocks, BATCH_BLOCKS))
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a line of JSON for each figure; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m router.bench")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="distinct blocks indexed")
    parser.add_argument("--decisions", type=int, default=20_000, help="for each policy")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    layout = Layout(options.replicas, options.blocks, options.decisions, options.seed)
    _print({"layout": asdict(layout), "python": sys.version.split()[0]})
    publishers = Publishers(PrefixIndex(max_blocks=2 * layout.num_blocks), layout.num_replicas)
    _print(asdict(measure_index(publishers, layout)))
    prompts = tell_prompts(publishers)
    for name in get_args(PolicyName):
        _print(asdict(measure_policy(name, publishers, prompts, layout)))
    return 0


def measure_index(publishers: Publishers, layout: Layout) -> IndexCost:
    """Fill the index with `num_blocks` distinct blocks and lose a replica."""
    bytes_per_block = _traced_bytes_per_block(min(TRACED_BLOCKS, layout.num_blocks))
    stored = publishers.tell_all("stored", layout.num_blocks)
    removed = publishers.tell_all("removed", layout.num_blocks // 10)
    publishers.tell_all("stored", layout.num_blocks // 10)
    index = publishers.index
    spare = KvBlocks("stored", _names(0, num_names=layout.num_blocks // layout.num_replicas))
    index.apply("spare", KvBatch(1, 0, (spare,)))
    forget_s = _seconds(lambda: index.forget("spare"))
    ticks = [_seconds(lambda: index.due(0.0)) for _ in range(64)]
    return IndexCost(
        num_blocks=index.figures.num_blocks,
        bytes_per_block=round(bytes_per_block, 1),
        stored_blocks_per_s=round(layout.num_blocks / sum(stored)),
        removed_blocks_per_s=round(layout.num_blocks // 10 / sum(removed)),
        longest_batch_ms=round(max(stored) * 1e3, 3),
        forget_ms=round(forget_s * 1e3, 3),
        longest_tick_ms=round(max(ticks) * 1e3, 3),
    )


def tell_prompts(publishers: Publishers) -> list[RoutingRequest]:
    """Prompts that all replicas hold, that each holds a part of, that one holds, and none."""
    num_held: dict[str, Callable[[int], int]] = {
        "all": lambda number: PROMPT_BLOCKS,
        "parts": lambda number: number % PROMPT_BLOCKS + 1,
        "one": lambda number: 0 if number else PROMPT_BLOCKS,
        "none": lambda number: 0,
    }
    prompts = []
    for kind, held in num_held.items():
        names = tuple(
            hashlib.sha256(f"{kind} {number}".encode()).digest() for number in range(PROMPT_BLOCKS)
        )
        for number, replica_id in enumerate(publishers.ids):
            publishers.tell(replica_id, "stored", names[: held(number)])
        prompts.append(
            RoutingRequest(
                request_id=kind,
                prompt_tokens=PROMPT_BLOCKS * BLOCK_SIZE,
                max_output_tokens=256,
                block_hashes=names,
                session_id=f"session {kind}",
            )
        )
    return prompts


def measure_policy(
    name: PolicyName, publishers: Publishers, prompts: list[RoutingRequest], layout: Layout
) -> DecisionCost:
    """Time so many decisions among replicas of different loads."""
    random_source = random.Random(layout.seed)
    policy = policy_of(RouterConfig(policy=name), random_source)
    router = RequestRouter(policy, index=publishers.index)
    for step in range(2):
        for replica_id in publishers.ids:
            router.update(_status(replica_id, step, random_source))
    times, cpu_times = [], []
    for number in range(layout.num_decisions):
        router.update(_status(random_source.choice(publishers.ids), number + 2, random_source))
        request = prompts[number % len(prompts)]
        started, cpu_started = time.perf_counter(), time.thread_time()
        reservation = router.choose(request)
        cpu_times.append(time.thread_time() - cpu_started)
        times.append(time.perf_counter() - started)
        assert isinstance(reservation, Reservation), reservation
        router.settle(reservation)
    return DecisionCost(
        policy=name,
        p50_us=_percentile_us(times, 50),
        p99_us=_percentile_us(times, 99),
        longest_us=_percentile_us(times, 100),
        cpu_p50_us=_percentile_us(cpu_times, 50),
        cpu_p99_us=_percentile_us(cpu_times, 99),
    )


def _percentile_us(times_s: list[float], percent: int) -> float:
    ordered = sorted(times_s)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1e6, 1)


def _status(replica_id: str, step: int, random_source: random.Random) -> ReplicaStatus:
    num_running = random_source.randrange(64)
    is_prefill = step % 2 == 0
    return ReplicaStatus(
        replica_id,
        state=ReplicaState.ACTIVE,
        outstanding_tokens=random_source.randrange(20_000),
        num_running=num_running,
        max_num_seqs=128,
        num_blocks=20_000,
        num_free_blocks=random_source.randrange(20_000),
        num_waiting_tokens=random_source.randrange(4_000),
        block_size=BLOCK_SIZE,
        last_step=StepSample(step, 512 if is_prefill else 0, num_running + 1, 0.05),
        finished_total=step,
        generated_total=step * 200,
        fetch_token_s=0.00001,
    )


def _traced_bytes_per_block(num_blocks: int) -> float:
    tracemalloc.start()
    try:
        publishers = Publishers(PrefixIndex(max_blocks=num_blocks), 64)
        publishers.tell_all("stored", num_blocks)
        return tracemalloc.get_traced_memory()[0] / publishers.index.figures.num_blocks
    finally:
        tracemalloc.stop()


def _names(start: int, *, num_names: int = BATCH_BLOCKS) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(b"%d" % n).digest() for n in range(start, start + num_names))


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _print(figure: dict[str, object]) -> None:
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    sys.exit(main())
