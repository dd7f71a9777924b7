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
