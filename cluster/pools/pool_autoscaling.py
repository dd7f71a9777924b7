"""Lets Serve's controller scale a pool by router.autoscaling, from what its replicas record.

The controller calls the policy several times a second. Serve's own delays and factors are set to
nothing: hysteresis is the scaler's. Requests that wait at gateways for a first replica are calls
that are queued there (cluster.pools.pool_waking), which Serve counts itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol

from cluster.pools.pool_config import ScalingConfig
from cluster.pools.pool_layout import Pool
from router.autoscaling import PoolLoad, PoolScaler, ScalingLimits

POLICY = f"{__name__}.PoolAutoscaling"

# What a replica records (cluster.replica.replica_load): name of a series in Serve's terms.
OUTSTANDING_TOKENS = "outstanding_tokens"
TOKENS_PER_S = "tokens_per_s"
NUM_BLOCKS = "num_blocks"
NUM_HELD_BLOCKS = "num_held_blocks"
ATTAINMENT = "attainment"

# How often replicas and handles send what they recorded; Serve's own 10 s are a long backlog.
METRICS_INTERVAL_S = 1.0


class ScalingContext(Protocol):
    """The part of ray.serve.config.AutoscalingContext that is looked at."""

    running_replicas: Sequence[object]
    target_num_replicas: int
    total_num_requests: float
    total_queued_requests: float
    raw_metrics: Mapping[str, Mapping[object, Sequence[Any]]] | None
    current_time: float


class PoolAutoscaling:
    """A Serve autoscaling policy of one pool; it remembers what was wished for between two calls.

    limits: the fields of router.autoscaling.ScalingLimits.
    """

    def __init__(self, **limits: Any) -> None:
        self._scaler = PoolScaler(ScalingLimits(**limits))

    def __call__(self, context: ScalingContext) -> tuple[int, dict[str, object]]:
        """How many replicas there should be from now on; there is no state for Serve to keep."""
        decision = self._scaler.decide(load_of(context), context.current_time)
        return decision.num_replicas, {}


def scaling_of(pool: Pool, scaling: ScalingConfig) -> dict[str, object] | None:
    """Serve's autoscaling settings for a pool; None for one whose size is fixed."""
    if not pool.max_replicas:
        return None
    names = {field.name for field in fields(ScalingLimits)}
    limits = {name: value for name, value in asdict(scaling).items() if name in names}
    bounds = {"min_replicas": pool.min_replicas, "max_replicas": pool.max_replicas}
    return {
        **bounds,
        "initial_replicas": pool.num_replicas,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
        "metrics_interval_s": METRICS_INTERVAL_S,
        "look_back_period_s": 5 * METRICS_INTERVAL_S,
        "policy": {"policy_function": POLICY, "policy_kwargs": {**limits, **bounds}},
    }


def load_of(context: ScalingContext) -> PoolLoad:
    """The pool as the scaler looks at it, from the last figure of each replica."""
    num_ready = len(context.running_replicas)
    metrics = context.raw_metrics or {}

    def last(name: str) -> list[float]:
        series = metrics.get(name, {})
        return [float(s[-1].value) for r in context.running_replicas if (s := series.get(r))]

    rates = [rate for rate in last(TOKENS_PER_S) if rate > 0.0]
    attainments = [share for share in last(ATTAINMENT) if share >= 0.0]
    num_blocks = sum(last(NUM_BLOCKS))
    backlog_tokens = int(sum(last(OUTSTANDING_TOKENS)))
    if not backlog_tokens and context.total_num_requests > 0:
        # A request that no replica has recorded yet is work all the same.
        backlog_tokens = 1
    return PoolLoad(
        num_ready=num_ready,
        num_starting=max(0, context.target_num_replicas - num_ready),
        backlog_tokens=backlog_tokens,
        tokens_per_s=sum(rates) / len(rates) if rates else 0.0,
        kv_ratio=sum(last(NUM_HELD_BLOCKS)) / num_blocks if num_blocks else 0.0,
        attainment=sum(attainments) / len(attainments) if attainments else None,
        num_held=int(context.total_queued_requests) if not num_ready else 0,
    )
