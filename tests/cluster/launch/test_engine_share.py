"""Engines that share one machine."""

from dataclasses import replace

from cluster.config import ClusterConfig, RayConfig, ReplicaConfig
from cluster.launch.service import engine_of_machine
from cluster.pools.pool_config import PoolConfig


def test_engines_of_one_machine_share_its_cores_and_its_memory():
    config = ClusterConfig(prefill=PoolConfig(num_replicas=1), decode=PoolConfig(max_replicas=3))
    engine = engine_of_machine(config, num_cores=9)
    assert (engine.engines_per_node, engine.num_threads) == (4, 2)
    assert engine_of_machine(config, num_cores=2).num_threads == 1


def test_a_single_engine_and_another_cluster_are_left_as_they_are():
    alone = ClusterConfig()
    assert engine_of_machine(alone, num_cores=8) == alone.engine
    many = replace(ClusterConfig(), replica=ReplicaConfig(num_replicas=4))
    elsewhere = replace(many, ray=RayConfig(ray_address="h:1"))
    assert engine_of_machine(elsewhere, num_cores=8) == many.engine


def test_threads_that_were_asked_for_stay():
    config = ClusterConfig(replica=ReplicaConfig(num_replicas=2))
    asked = replace(config, engine=replace(config.engine, num_threads=5))
    assert engine_of_machine(asked, num_cores=8).num_threads == 5
