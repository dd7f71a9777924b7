"""Says how many replicas a pool should have, from work that waits instead of requests that run.

The number of ongoing requests is a poor signal for language models, and scaling on it swings
(survey, complaint 24). Here a pool grows when its token backlog would take too long, when its KV
cache is nearly full, or when it misses its latencies; replicas that start count already; it shrinks
only after a long calm, and only if the rest can absorb the load. An idle model may go to zero; a
request that is held for it wakes it at once.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Reason = Literal["backlog", "kv_pressure", "slo", "wake", "idle", "calm", "bounds", "steady"]


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """When a pool grows and shrinks.

    target_backlog_s: how long the pool may need for the work that it has. target_kv_ratio: share
    of the KV blocks that may be in use. target_attainment: share of requests that have to meet
    their latencies. upscale_delay_s, downscale_delay_s: how long the wish has to last.
    idle_to_zero_s: without work for this long, a pool with min_replicas 0 goes to 0.
    absorb_ratio: a pool shrinks only if what is left would be below this share of its targets.
    max_growth: at most this many times as many replicas at once.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target_backlog_s: float = 5.0
    target_kv_ratio: float = 0.85
    target_attainment: float = 0.95
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 120.0
    idle_to_zero_s: float = 300.0
    absorb_ratio: float = 0.8
    max_growth: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas}: expected 0 to max_replicas={self.max_replicas}"
            )
        if self.max_replicas < 1:
            raise ValueError(f"max_replicas={self.max_replicas}: expected at least 1")
        if not self.target_backlog_s > 0.0:
            raise ValueError(f"target_backlog_s={self.target_backlog_s}: expected more than 0")
        for name in ("target_kv_ratio", "target_attainment", "absorb_ratio"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a share in (0, 1]")
        for name in ("upscale_delay_s", "downscale_delay_s", "idle_to_zero_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more seconds")
        if not self.max_growth > 1.0:
            raise ValueError(f"max_growth={self.max_growth}: expected more than 1")


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """A pool as it is now.

    backlog_tokens: tokens to be computed for all its open requests. tokens_per_s: what one replica
    computes when busy, as measured; 0.0 while unknown. kv_ratio: share of all KV blocks that
    requests hold. attainment: share of recent requests that met their latencies; None when none
    ended or none is stated. num_held: requests that wait at gateways for a first replica.
    """

    num_ready: int
    num_starting: int
    backlog_tokens: int = 0
    tokens_per_s: float = 0.0
    kv_ratio: float = 0.0
    attainment: float | None = None
    num_held: int = 0


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many replicas there should be, and the reason for it."""

    num_replicas: int
    reason: Reason


class PoolScaler:
    """One pool's number of replicas over time. Times are seconds of one monotonic clock."""

    def __init__(self, limits: ScalingLimits) -> None:
        self._limits = limits
        self._above_since: float | None = None
        self._wishes: deque[tuple[float, int]] = deque()
        self._started_at: float | None = None
        self._worked_at: float | None = None

    def decide(self, load: PoolLoad, now: float) -> ScalingDecision:
        """The number to have from now on; call it regularly."""
        limits = self._limits
        present = load.num_ready + load.num_starting
        is_working = load.backlog_tokens > 0 or load.num_held > 0
        if is_working or self._worked_at is None:
            self._worked_at = now
        wish, reason = wanted(load, limits)
        self._remember(wish, now)
        if present == 0 and is_working:
            return ScalingDecision(max(1, min(wish, limits.max_replicas)), "wake")
        bounded = min(max(present, limits.min_replicas), limits.max_replicas)
        if bounded != present:
            return ScalingDecision(bounded, "bounds")
        if wish > present:
            return self._grow(present, wish, reason, now)
        self._above_since = None
        if limits.min_replicas == 0 and now - self._worked_at >= limits.idle_to_zero_s:
            return ScalingDecision(0, "idle")
        return self._shrink(present, load, now)

    def _grow(self, present: int, wish: int, reason: Reason, now: float) -> ScalingDecision:
        if self._above_since is None:
            self._above_since = now
        if now - self._above_since < self._limits.upscale_delay_s:
            return ScalingDecision(present, "steady")
        self._above_since = None
        most = max(present + 1, math.floor(present * self._limits.max_growth))
        return ScalingDecision(min(wish, most), reason)

    def _shrink(self, present: int, load: PoolLoad, now: float) -> ScalingDecision:
        """To the largest wish of the whole calm, and not below what the rest can absorb."""
        assert self._started_at is not None
        target = max(wish for _, wish in self._wishes)
        # A calm that has not lasted as long as it must is none, also right after the start.
        is_calm = now - self._started_at >= self._limits.downscale_delay_s
        floor = max(self._limits.min_replicas, 1)
        target = max(target, floor)
        if not is_calm or target >= present or not self._can_absorb(load, target):
            return ScalingDecision(present, "steady")
        return ScalingDecision(target, "calm")

    def _can_absorb(self, load: PoolLoad, target: int) -> bool:
        limits = self._limits
        if load.num_starting or load.num_ready == 0:
            return False
        if load.attainment is not None and load.attainment < limits.target_attainment:
            return False
        kv_ratio = load.kv_ratio * load.num_ready / target
        if kv_ratio > limits.absorb_ratio * limits.target_kv_ratio:
            return False
        if not load.backlog_tokens:
            return True
        if not load.tokens_per_s:
            return False
        backlog_s = load.backlog_tokens / (load.tokens_per_s * target)
        return backlog_s <= limits.absorb_ratio * limits.target_backlog_s

    def _remember(self, wish: int, now: float) -> None:
        """Keep the wishes of the last `downscale_delay_s`, without those that a later one tops."""
        if self._started_at is None:
            self._started_at = now
        while self._wishes and self._wishes[-1][1] <= wish:
            self._wishes.pop()
        self._wishes.append((now, wish))
        while now - self._wishes[0][0] > self._limits.downscale_delay_s:
            self._wishes.popleft()


def wanted(load: PoolLoad, limits: ScalingLimits) -> tuple[int, Reason]:
    """How many replicas this load asks for by itself, within bounds, and which part of it does."""
    present = load.num_ready + load.num_starting
    wishes: list[tuple[int, Reason]] = [(0, "steady")]
    if load.backlog_tokens:
        per_replica = load.tokens_per_s * limits.target_backlog_s
        # A pace that is not known yet is no ground to grow, but the work is one to stay.
        count = math.ceil(load.backlog_tokens / per_replica) if per_replica else max(1, present)
        wishes.append((count, "backlog"))
    if load.num_held:
        wishes.append((max(1, present), "backlog"))
    if load.kv_ratio:
        wishes.append(
            (math.ceil(load.num_ready * load.kv_ratio / limits.target_kv_ratio), "kv_pressure")
        )
    if load.attainment is not None and load.attainment < limits.target_attainment:
        # Those that start will help; one more than is ready is asked for until they do.
        wishes.append((load.num_ready + 1, "slo"))
    count, reason = max(wishes, key=lambda wish: wish[0])
    return min(max(count, limits.min_replicas), limits.max_replicas), reason


def share_out(
    wishes: Mapping[str, int], *, minimums: Mapping[str, int], max_total: int
) -> dict[str, int]:
    """Replicas for each pool when there are not enough for all wishes: minimums, then by need.

    One after another goes to the pool that has the smallest part of its wish, so the ratio of
    prefill to decode follows the traffic. Raises ValueError if the minimums alone are too many.
    """
    shares = {pool: min(wish, minimums[pool]) for pool, wish in wishes.items()}
    if sum(shares.values()) > max_total:
        raise ValueError(f"minimums={dict(minimums)}: expected at most {max_total} in all")
    for _ in range(max_total - sum(shares.values())):
        wanting = [pool for pool, wish in wishes.items() if shares[pool] < wish]
        if not wanting:
            break
        neediest = min(wanting, key=lambda pool: ((shares[pool] + 0.5) / wishes[pool], pool))
        shares[neediest] += 1
    return shares
