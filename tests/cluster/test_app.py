"""The Serve builder function, as `serve deploy` calls it."""

from dataclasses import replace

import pytest
from ray import serve

from cluster.app import build_app
from cluster.config import ClusterConfig
from cluster.settings import SettingError
from replicas.config import EngineConfig


def test_the_builder_takes_all_settings_or_some():
    config = replace(ClusterConfig(), engine=EngineConfig(model="folder"))
    assert isinstance(build_app(config.to_args()), serve.Application)
    assert isinstance(build_app({"engine": {"model": "folder"}}), serve.Application)


def test_a_name_that_is_no_setting_is_refused():
    with pytest.raises(SettingError, match="modle"):
        build_app({"engine": {"modle": "folder"}})
