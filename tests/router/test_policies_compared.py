"""Policies on the same conversations: what affinity saves, and that it does not pay with imbalance.

A small model of replicas under a virtual clock: each serves its line in order, a prompt token costs
1 ms unless its block is in the replica's cache, which holds the most recently used blocks.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field

import pytest

from router.config import PolicyName, RouterConfig
from router.policies import policy_of
from router.prefixes.kv_events import KvBatch, KvBlocks
from router.prefixes.prefix_index import PrefixIndex
from router.replica_status import ReplicaState, ReplicaStatus
from router.request_router import RequestRouter, Reservation
from router.routing_policy import RoutingRequest

BLOCK_SIZE = 16
CACHE_BLOCKS = 600
NUM_REPLICAS = 4


@dataclass
class ModelReplica:
    """A line of work and a cache that tells its changes."""

    name: str
    index: PrefixIndex
    free_at: float = 0.0
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    next_number: int = 0
    computed_tokens: int = 0

    def serve(self, names: tuple[bytes, ...], now: float) -> tuple[float, int]:
        """Seconds to the first token, and hit tokens."""
        num_hits = next((n for n, name in enumerate(names) if name not in self.cache), len(names))
        tokens = (len(names) - num_hits) * BLOCK_SIZE + 1
        self.computed_tokens += tokens
        self.free_at = max(self.free_at, now) + tokens * 0.001
        for name in reversed(names):
            self.cache[name] = None
            self.cache.move_to_end(name)
        removed = []
        while len(self.cache) > CACHE_BLOCKS:
            removed.append(self.cache.popitem(last=False)[0])
        events = (KvBlocks("stored", names), KvBlocks("removed", tuple(removed)))
        self.index.apply(self.name, KvBatch(1, self.next_number, events))
        self.next_number += len(events)
        return self.free_at - now, num_hits * BLOCK_SIZE


@dataclass(frozen=True)
class Outcome:
    """mean_ttft_s, hit_tokens of all requests, and the fullest replica's work over the mean."""

    mean_ttft_s: float
    hit_tokens: int
    imbalance: float


def conversations(seed: int) -> list[tuple[float, tuple[bytes, ...], str]]:
    """Arrivals of turns that go on from the last one, behind a few system prompts."""
    source = random.Random(seed)
    systems = [[source.randbytes(32) for _ in range(20)] for _ in range(3)]
    open_ones = [(list(systems[n % 3]), f"session {n}") for n in range(40)]
    turns, now = [], 0.0
    for _ in range(800):
        now += source.expovariate(8.0)
        names, session = source.choice(open_ones)
        names += [source.randbytes(32) for _ in range(source.randint(2, 8))]
        turns.append((now, tuple(names), session))
        if len(names) > 90:
            del names[20:]
    return turns


def outcome(policy_name: PolicyName, seed: int = 5) -> Outcome:
    index = PrefixIndex(max_blocks=10_000)
    policy = policy_of(RouterConfig(policy=policy_name), random.Random(seed))
    router = RequestRouter(policy, index=index)
    replicas = {f"r{n}": ModelReplica(f"r{n}", index) for n in range(NUM_REPLICAS)}
    ttfts, hit_tokens = [], 0
    for now, names, session in conversations(seed):
        for replica in replicas.values():
            waiting = round(max(0.0, replica.free_at - now) * 1000)
            router.update(
                ReplicaStatus(
                    replica.name,
                    state=ReplicaState.ACTIVE,
                    outstanding_tokens=waiting,
                    block_size=BLOCK_SIZE,
                )
            )
        request = RoutingRequest(
            "r", len(names) * BLOCK_SIZE, 1, block_hashes=names, session_id=session
        )
        chosen = router.choose(request)
        assert isinstance(chosen, Reservation)
        ttft_s, hits = replicas[chosen.replica_id].serve(names, now)
        router.settle(chosen)
        ttfts.append(ttft_s)
        hit_tokens += hits
    work = [replica.computed_tokens for replica in replicas.values()]
    return Outcome(sum(ttfts) / len(ttfts), hit_tokens, max(work) / (sum(work) / len(work)))


@pytest.mark.parametrize("baseline", ["random", "round_robin", "least_loaded"])
def test_affinity_finds_more_and_answers_sooner_than_a_baseline(baseline: PolicyName):
    blind, affine = outcome(baseline), outcome("prefix_affinity")
    assert affine.hit_tokens > 1.3 * blind.hit_tokens
    assert affine.mean_ttft_s < 0.7 * blind.mean_ttft_s


def test_affinity_does_not_pay_with_imbalance():
    assert outcome("prefix_affinity").imbalance < 1.5


def test_sessions_find_their_own_conversation():
    assert outcome("session").hit_tokens > 1.2 * outcome("random").hit_tokens
