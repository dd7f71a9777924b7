"""The Serve builder function, as `serve deploy` calls it."""

import os
from dataclasses import replace

import pytest
from ray import serve

from cluster.app import build_app
from cluster.config import ClusterConfig
from cluster.config_loading import builder_config
from cluster.settings import SettingError
from replicas.config import EngineConfig


def test_the_builder_takes_all_settings_or_some():
    config = replace(ClusterConfig(), engine=EngineConfig(model="folder"))
    assert isinstance(build_app(config.to_args()), serve.Application)
    assert isinstance(build_app({"engine": {"model": "folder"}}), serve.Application)


def test_secrets_come_by_the_environment_and_args_go_before_it(monkeypatch):
    monkeypatch.setenv("PAGODA_API_KEY", "one,two")
    monkeypatch.setenv("PAGODA_MAX_NUM_SEQS", "7")
    args = {"engine": {"model": "folder", "scheduler": {"max_num_seqs": 9}}}
    config = builder_config(args, os.environ)
    assert config.gateway.api_keys == ("one", "two")
    assert config.engine.scheduler.max_num_seqs == 9
    with pytest.raises(SettingError, match="PAGODA_PORT"):
        builder_config(args, {"PAGODA_PORT": "tcp://10.0.0.1:8000"})


def test_a_name_that_is_no_setting_is_refused():
    with pytest.raises(SettingError, match="modle"):
        build_app({"engine": {"modle": "folder"}})


def arguments(app: serve.Application) -> list[tuple[object, ...]]:
    """What each deployment's copies are made with: the gateway's, then the replicas'."""
    gateway = app._bound_deployment
    args, pools, sleepy = gateway.init_args
    replicas = [pool._bound_deployment.init_args[:1] for pool in pools.values()]
    return [(args, sorted(pools), sleepy), *replicas]


def test_copies_are_made_alike_however_many_there_are():
    few = {"engine": {"model": "m"}, "prefill": {"num_replicas": 1}, "decode": {"num_replicas": 2}}
    many = {**few, "prefill": {"num_replicas": 3}, "decode": {"num_replicas": 4, "max_replicas": 8}}
    many["scaling"] = {"target_backlog_s": 9.0}
    many["gateway"] = {"num_gateways": 2}
    many["decode"]["min_replicas"] = 1
    assert arguments(build_app(few)) == arguments(build_app(many))


def test_each_pool_is_a_deployment_of_its_own_with_its_own_engines():
    app = build_app(
        {
            "engine": {"model": "m"},
            "replica": {"num_replicas": 1},
            "prefill": {"num_replicas": 1, "max_num_batched_tokens": 4096},
            "decode": {"max_replicas": 3},
        }
    )
    _, pools, sleepy = app._bound_deployment.init_args
    deployments = {role: pool._bound_deployment for role, pool in pools.items()}
    names = {role: deployment.name for role, deployment in deployments.items()}
    assert names == {"mixed": "replica", "prefill": "prefill", "decode": "decode"}
    engines = {role: made.init_args[0]["engine"] for role, made in deployments.items()}
    assert {role: engine["role"] for role, engine in engines.items()} == {r: r for r in names}
    assert engines["prefill"]["scheduler"]["max_num_batched_tokens"] == 4096
    assert sleepy == ["decode"]
