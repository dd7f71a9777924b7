"""A pool's size, from what Serve knows of it."""

from dataclasses import dataclass, field, replace

import pytest
from ray.serve.config import AutoscalingConfig

from cluster.config import ClusterConfig, ReplicaConfig
from cluster.pools.pool_autoscaling import PoolAutoscaling, load_of, scaling_of
from cluster.pools.pool_config import PoolConfig, ScalingConfig
from cluster.replica.replica_load import ReplicaLoad
from cluster.streams.stream_codec import EngineReport
from replicas.engine_stats import EngineStats
from replicas.request import FinishReason, Timeline, TokenEntry


@dataclass
class Value:
    value: float


@dataclass
class Context:
    """What the policy reads of Serve's context."""

    running_replicas: list[str]
    target_num_replicas: int = 1
    total_num_requests: float = 0.0
    total_queued_requests: float = 0.0
    raw_metrics: dict[str, dict[str, list[Value]]] = field(default_factory=dict)
    current_time: float = 0.0


def metrics(**figures: float) -> dict[str, dict[str, list[Value]]]:
    """The same figures of two replicas, after older ones."""
    return {name: dict.fromkeys("ab", [Value(0), Value(v)]) for name, v in figures.items()}


def test_the_last_figure_of_each_running_replica_counts():
    context = Context(
        ["a", "b"],
        target_num_replicas=3,
        raw_metrics=metrics(
            outstanding_tokens=100, tokens_per_s=50, num_blocks=10, num_held_blocks=4
        )
        | {"attainment": {"a": [Value(0.5)], "b": [Value(-1)], "gone": [Value(0)]}},
    )
    load = load_of(context)
    assert (load.num_ready, load.num_starting, load.backlog_tokens) == (2, 1, 200)
    assert (load.tokens_per_s, load.kv_ratio, load.attainment) == (50.0, 0.4, 0.5)


def test_a_request_that_nobody_has_recorded_is_work():
    assert load_of(Context(["a"], total_num_requests=1.0)).backlog_tokens == 1
    assert load_of(Context([], total_queued_requests=2.0)).num_held == 2


def test_a_backlog_that_lasts_gets_more_replicas_within_the_bounds():
    policy = PoolAutoscaling(min_replicas=1, max_replicas=3, upscale_delay_s=2.0)
    busy = metrics(outstanding_tokens=10_000, tokens_per_s=100)
    context = Context(["a"], raw_metrics=busy)
    assert policy(context) == (1, {})
    assert policy(replace(context, current_time=2.5)) == (2, {})


def test_an_idle_pool_goes_to_zero_and_a_held_request_wakes_it():
    policy = PoolAutoscaling(min_replicas=0, max_replicas=2, idle_to_zero_s=5.0)
    assert policy(Context(["a"])) == (1, {})
    assert policy(Context(["a"], current_time=6.0)) == (0, {})
    asleep = Context([], target_num_replicas=0, current_time=7.0)
    assert policy(asleep) == (0, {})
    assert policy(replace(asleep, total_queued_requests=1.0)) == (1, {})


def test_serve_takes_the_settings_of_a_pool():
    config = ClusterConfig(
        replica=ReplicaConfig(min_replicas=0, max_replicas=4, num_replicas=2),
        scaling=ScalingConfig(idle_to_zero_s=7.0),
    )
    (pool,) = config.pools()
    with pytest.warns(DeprecationWarning, match="metrics_interval_s"):
        made = AutoscalingConfig(**scaling_of(pool, config.scaling))
    assert (made.min_replicas, made.initial_replicas, made.max_replicas) == (0, 2, 4)
    policy = made.policy.get_policy()(**made.policy.policy_kwargs)
    assert policy(Context([], target_num_replicas=0, total_queued_requests=1.0))[0] == 1


def test_a_pool_without_bounds_has_a_fixed_size():
    config = ClusterConfig(decode=PoolConfig(num_replicas=2))
    assert [scaling_of(pool, config.scaling) for pool in config.pools()] == [None]


def test_a_replica_records_work_speed_room_and_attainment():
    load = ReplicaLoad("decode", ttft_slo_s=0.5, tpot_slo_s=0.1)
    stats = EngineStats(
        step=1, max_num_seqs=8, num_blocks=10, num_free_blocks=4, num_decode_tokens=2, run_s=0.02
    )
    ends = [
        TokenEntry("r", 0, 0, 10, (1,), FinishReason.LENGTH, timeline=Timeline(0.0, 0.1, first, 2))
        for first in (0.4, 0.6)
    ]
    load.see(stats, ends)
    figures = load.figures(EngineReport(outstanding_tokens=50, stats=stats))
    assert figures["outstanding_tokens"] == 50
    assert figures["tokens_per_s"] == pytest.approx(8 / 0.02)
    assert (figures["num_blocks"], figures["num_held_blocks"]) == (10, 6)
    assert figures["attainment"] == 0.0
    patient = ReplicaLoad("decode", ttft_slo_s=0.5, tpot_slo_s=0.2)
    patient.see(stats, ends)
    assert patient.figures(EngineReport())["attainment"] == 0.5


def test_without_stated_latencies_there_is_no_attainment():
    load = ReplicaLoad("mixed", ttft_slo_s=0.0, tpot_slo_s=0.0)
    assert load.figures(EngineReport())["attainment"] < 0.0
