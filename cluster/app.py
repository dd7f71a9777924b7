"""Builds the Serve application: gateways in front, replicas behind (`cluster.app:build_app`)."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace

from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from cluster.config import ClusterConfig
from cluster.config_loading import builder_config
from cluster.dispatch.serve_router_adapter import RouteObeyingRouter
from cluster.gateway.gateway_deployment import Gateway
from cluster.pools.pool_autoscaling import scaling_of
from cluster.pools.pool_config import PoolConfig, ScalingConfig
from cluster.pools.pool_layout import Pool
from cluster.replica.engine_starting import EngineStarter, start_real_engine
from cluster.replica.replica_deployment import Replica
from replicas.config import Role

# The engine queues and refuses (DESIGN 2.5), so Serve's own limit of 5 must never be reached.
MAX_ONGOING_REQUESTS = 1_000_000

SHUTDOWN_POLL_S = 0.2

_ROUTER_CLASS = f"{RouteObeyingRouter.__module__}.{RouteObeyingRouter.__name__}"

GATEWAY = "gateway"
REPLICA = "replica"
DEPLOYMENTS: dict[Role, str] = {"mixed": REPLICA, "prefill": "prefill", "decode": "decode"}


def build_app(args: Mapping[str, object]) -> serve.Application:
    """The application that `args` (ClusterConfig as plain values, or a part of it) describes.

    What args leave open comes from the environment of the process that builds. The model must be a
    prepared folder that every node can read.
    """
    return compose(builder_config(args, os.environ), start_engine=start_real_engine)


def compose(config: ClusterConfig, *, start_engine: EngineStarter) -> serve.Application:
    """The application of a config; `start_engine` runs in each replica's process."""
    pools = {
        pool.role: _replica_deployment(config, pool).bind(_pool_args(config, pool), start_engine)
        for pool in config.pools()
    }
    args = _args_of_each_copy(config).to_args()
    return _gateway_deployment(config).bind(args, pools, _sleepy_pools(config))


def _args_of_each_copy(config: ClusterConfig) -> ClusterConfig:
    # Serve replaces every copy whose arguments change, so how many there are must not be in them.
    return replace(
        config,
        gateway=replace(config.gateway, num_gateways=1),
        replica=replace(config.replica, num_replicas=0, min_replicas=0, max_replicas=0),
        prefill=PoolConfig(),
        decode=PoolConfig(),
        scaling=ScalingConfig(),
    )


def _sleepy_pools(config: ClusterConfig) -> list[str]:
    """The pools that may have no replica for a while."""
    return [pool.role for pool in config.pools() if pool.max_replicas and not pool.min_replicas]


def _pool_args(config: ClusterConfig, pool: Pool) -> dict[str, object]:
    return replace(_args_of_each_copy(config), engine=pool.engine).to_args()


def _replica_deployment(config: ClusterConfig, pool: Pool) -> serve.Deployment:
    settings = config.replica
    scaling = _autoscaling(config, pool)
    make = serve.deployment(
        name=DEPLOYMENTS[pool.role],
        num_replicas=pool.num_replicas if scaling is None else None,
        autoscaling_config=scaling,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=settings.health_check_period_s,
        health_check_timeout_s=settings.health_check_timeout_s,
        graceful_shutdown_wait_loop_s=SHUTDOWN_POLL_S,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        ray_actor_options={"num_cpus": pool.num_cpus, "num_gpus": pool.num_gpus},
        request_router_config={"request_router_class": _ROUTER_CLASS},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return make(Replica)


def _autoscaling(config: ClusterConfig, pool: Pool) -> AutoscalingConfig | None:
    scaling = scaling_of(pool, config.scaling)
    with warnings.catch_warnings():
        # Serve 2.60 deprecates metrics_interval_s, in favour of what is only to come.
        warnings.simplefilter("ignore", DeprecationWarning)
        return None if scaling is None else AutoscalingConfig.model_validate(scaling)


def _gateway_deployment(config: ClusterConfig) -> serve.Deployment:
    settings = config.replica
    make = serve.deployment(
        name=GATEWAY,
        num_replicas=config.gateway.num_gateways,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=settings.health_check_period_s,
        health_check_timeout_s=settings.health_check_timeout_s,
        graceful_shutdown_wait_loop_s=SHUTDOWN_POLL_S,
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        ray_actor_options={"num_cpus": 0},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    return make(serve.ingress()(Gateway))
