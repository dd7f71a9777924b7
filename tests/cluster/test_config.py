"""Settings: sources, precedence, and refusals that name what is wrong."""

import json

import pytest

from cluster.config import ClusterConfig, GatewayConfig
from cluster.config_loading import (
    cache_folder,
    flag,
    load_config,
    misspelt_variables,
    public_settings,
    variable,
)
from cluster.settings import SettingError


def load(flags=None, environ=None):
    return load_config(flags or {}, environ or {})


def refusal(flags=None, environ=None):
    with pytest.raises(SettingError) as caught:
        load(flags, environ)
    return str(caught.value)


def test_without_any_source_the_defaults_hold():
    assert load() == ClusterConfig()


def test_arguments_travel_through_json_unchanged():
    config = load(
        {"gateway.api_keys": ["a", "b"], "gateway.port": "8123", "engine.dtype": "float32"}
    )
    assert ClusterConfig.from_args(json.loads(json.dumps(config.to_args()))) == config


def test_a_partial_mapping_keeps_every_other_default():
    config = ClusterConfig.from_args({"gateway": {"port": 8123}})
    assert config == ClusterConfig(gateway=GatewayConfig(port=8123))


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "pagoda.toml"
    file.write_text("[gateway]\nport = 1\nnum_gateways = 3\nmax_num_choices = 5\n")
    flags = {"config": str(file), "gateway.port": "7"}
    environ = {"PAGODA_PORT": "8", "PAGODA_NUM_GATEWAYS": "9"}
    gateway = load(flags, environ).gateway
    assert (gateway.port, gateway.num_gateways, gateway.max_num_choices) == (7, 9, 5)


def test_redis_and_ray_are_named_by_their_usual_variables():
    config = load(environ={"REDIS_URL": "redis://h:1/0", "RAY_ADDRESS": "h:6379"})
    assert (config.store.redis_url, config.ray.ray_address) == ("redis://h:1/0", "h:6379")


def test_an_empty_variable_counts_as_absent():
    assert load(environ={"PAGODA_PORT": "", "REDIS_URL": ""}) == ClusterConfig()


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("1GiB", 2**30), ("512 MiB", 2**29), ("1.5G", 1_500_000_000), ("4096", 4096), ("2kb", 2000)],
)
def test_bytes_may_be_written_with_a_unit(text, num_bytes):
    assert load({"engine.kv_cache_memory_bytes": text}).engine.kv_cache_memory_bytes == num_bytes


@pytest.mark.parametrize(
    ("text", "is_on"), [("true", True), ("0", False), ("ON", True), ("no", False)]
)
def test_a_switch_reads_the_usual_words(text, is_on):
    assert load(environ={"PAGODA_DETERMINISTIC": text}).engine.deterministic is is_on


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"gateway.port": "abc"}, {}, "--port='abc': expected a whole number"),
        ({}, {"PAGODA_PORT": "tcp://1"}, "PAGODA_PORT='tcp://1': expected a whole number"),
        ({"gateway.port": "0"}, {}, "port=0: expected 1 to 65535 (from --port)"),
        ({"engine.dtype": "int4"}, {}, "--dtype='int4': expected auto or bfloat16 or float32"),
        ({"engine.scheduler.watermark": "x"}, {}, "--watermark='x': expected a number"),
        ({"engine.deterministic": "maybe"}, {}, "expected true or false"),
        ({"engine.kv_cache_memory_bytes": "lots"}, {}, "expected a number of bytes"),
        (
            {"engine.scheduler.max_num_seqs": "1000"},
            {},
            "max_num_batched_tokens=512: expected at least max_num_seqs=1000",
        ),
    ],
)
def test_a_bad_value_names_its_source_and_what_was_expected(flags, environ, message):
    assert message in refusal(flags, environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gateway]\nprt = 1\n", "gateway.prt is not a setting; did you mean gateway.port?"),
        ("max_num_seqs = 4\n", "did you mean engine.scheduler.max_num_seqs?"),
        ("gateway = 3\n", "gateway=3: expected a table of settings"),
        ("[gateway]\nport = true\n", "gateway.port=True: expected a whole number"),
        ("[engine]\nmodel = 7\n", "engine.model=7: expected text"),
        ("[gateway\n", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_with_the_nearest_name(tmp_path, text, message):
    file = tmp_path / "pagoda.toml"
    file.write_text(text)
    refused = refusal({"config": str(file)})
    assert message in refused
    assert str(file) in refused


def test_a_missing_file_is_refused_by_name(tmp_path):
    assert "nowhere.toml" in refusal({"config": str(tmp_path / "nowhere.toml")})


def roles(flags=None):
    return {pool.role: pool.num_replicas for pool in load(flags).pools()}


def test_one_mixed_replica_serves_unless_there_is_a_decode_pool():
    assert roles() == {"mixed": 1}
    assert roles({"prefill.num_replicas": "2"}) == {"mixed": 1, "prefill": 2}
    pools = {"prefill.num_replicas": "2", "decode.num_replicas": "3"}
    assert roles(pools) == {"prefill": 2, "decode": 3}
    assert roles({**pools, "replica.num_replicas": "1"}) == {"mixed": 1, "prefill": 2, "decode": 3}


def test_a_pool_has_settings_of_its_own_and_the_general_ones_elsewhere():
    flags = {"decode.num_replicas": "1", "decode.max_num_seqs": "7", "engine.num_threads": "3"}
    (decode,) = load(flags).pools()
    assert decode.engine.role == "decode"
    assert decode.engine.scheduler.max_num_seqs == 7
    assert decode.engine.num_threads == 3
    assert decode.num_cpus == ClusterConfig().replica.num_cpus


def test_a_pool_scales_between_bounds_that_are_in_order():
    assert roles({"decode.max_replicas": "4"}) == {"decode": 1}
    flags = {"prefill.min_replicas": "3", "prefill.max_replicas": "2"}
    assert "min_replicas=3: expected at most max_replicas=2" in refusal(flags)
    assert "expected max_replicas too" in refusal({"replica.min_replicas": "1"})


def test_a_pool_whose_settings_do_not_fit_the_general_ones_names_itself():
    flags = {"decode.num_replicas": "1", "decode.max_num_seqs": "9999"}
    assert "decode: max_num_batched_tokens=512" in refusal(flags)


def test_the_flags_of_a_pool_begin_with_its_name():
    names = {setting.dotted: flag(setting) for setting in public_settings()}
    assert names["prefill.num_replicas"] == "--prefill"
    assert names["decode.num_replicas"] == "--decode"
    assert names["decode.max_num_seqs"] == "--decode-max-num-seqs"


def test_a_bad_store_address_is_refused_without_its_password():
    message = refusal(environ={"REDIS_URL": "http://user:hunter2@h"})
    assert "redis_url=http:...: expected one of redis://, rediss://" in message
    assert "hunter2" not in message


def test_secrets_do_not_show_in_a_printed_config():
    config = load({"gateway.api_keys": ["hunter2"]}, {"REDIS_URL": "redis://:hunter3@h"})
    assert "hunter" not in repr(config)


def test_a_misspelt_variable_is_noticed_and_a_stranger_is_not():
    environ = {"PAGODA_MAX_NUM_SEQ": "4", "PAGODA_SERVICE_HOST": "10.0.0.1", "PAGODA_PORT": "1"}
    assert misspelt_variables(environ) == {"PAGODA_MAX_NUM_SEQ": "PAGODA_MAX_NUM_SEQS"}


def test_prepared_models_lie_where_the_user_says():
    assert str(cache_folder(ClusterConfig(cache_dir="/a"), {"XDG_CACHE_HOME": "/b"})) == "/a"
    assert str(cache_folder(ClusterConfig(), {"XDG_CACHE_HOME": "/b"})) == "/b/pagoda"


def test_every_flag_and_every_variable_names_one_setting():
    every = public_settings()
    assert len({flag(setting) for setting in every}) == len(every)
    assert len({variable(setting) for setting in every}) == len(every)


def test_every_setting_says_what_it_means():
    assert [setting.dotted for setting in public_settings() if not setting.help] == []


def test_settings_that_users_of_vllm_know_bear_their_names():
    known = (
        "--model --served-model-name --dtype --max-model-len --host --port --api-key --block-size "
        "--gpu-memory-utilization --kv-cache-memory-bytes --max-num-seqs --max-num-batched-tokens "
        "--enable-prefix-caching --long-prefill-token-threshold --scheduling-policy --watermark "
        "--async-scheduling --max-num-queued-reqs --max-num-queued-tokens --allowed-origins"
    )
    assert set(known.split()) <= {flag(setting) for setting in public_settings()}
