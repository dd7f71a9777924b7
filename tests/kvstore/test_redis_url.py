"""Every form of URL in which people run Redis, and what is wrong with the others."""

import pytest

from kvstore.config import StoreConfig
from kvstore.redis_url import RedisTarget, parse_redis_url, without_secrets


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://host", RedisTarget(addresses=(("host", 6379),))),
        ("redis://host:7/3", RedisTarget(addresses=(("host", 7),), db=3)),
        ("redis://:pw@host", RedisTarget(addresses=(("host", 6379),), password="pw")),
        (
            "rediss://kv:p%40s%2Fs@host:7",
            RedisTarget(addresses=(("host", 7),), is_tls=True, username="kv", password="p@s/s"),
        ),
        ("redis://[::1]:7", RedisTarget(addresses=(("::1", 7),))),
        ("redis://[::1]", RedisTarget(addresses=(("::1", 6379),))),
        ("unix:///run/v.sock?db=2", RedisTarget(unix_path="/run/v.sock", db=2)),
        ("unix://u:p@/v.sock", RedisTarget(unix_path="/v.sock", username="u", password="p")),
        (
            "redis+sentinel://:pw@a:1,b/mymaster/4?sentinel_password=s",
            RedisTarget(
                topology="sentinel",
                addresses=(("a", 1), ("b", 26379)),
                service="mymaster",
                db=4,
                password="pw",
                sentinel_password="s",
            ),
        ),
        (
            "rediss+cluster://a:1,b:2",
            RedisTarget(topology="cluster", addresses=(("a", 1), ("b", 2)), is_tls=True),
        ),
    ],
)
def test_a_url_says_where_redis_is(url, target):
    assert parse_redis_url(url) == target
    assert StoreConfig(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "http"),
        ("host:6379", "expected one of redis://"),
        ("redis://", "expected host"),
        ("redis://host:port", "expected host or host:port"),
        ("redis://host:99999", "expected host or host:port"),
        ("redis://host/zero", "db=zero"),
        ("redis://a,b", "several hosts"),
        ("redis://host?timeout=3", "timeout"),
        ("unix://host/path", "expected a path"),
        ("redis+sentinel://host", "expected the service's name"),
        ("redis+cluster://host/1", "database 0 only"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url, words):
    with pytest.raises(ValueError, match=words):
        parse_redis_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@host:1/0",
        "redis://host:1/0?sentinel_password=secret",
        "redis://user:se?cret@host:1",
        "redis://host:1?sentinel_password=x@secret",
        "httq://user:secret@host",
        "redis://user:secret@host:port",
    ],
)
def test_no_secret_is_ever_printed(url):
    assert "cret" not in without_secrets(url)
    try:
        target = repr(parse_redis_url(url))
    except ValueError as error:
        target = str(error)
    assert "cret" not in target


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store_memory_bytes", 1),
        ("store_in_flight_bytes", 1),
        ("store_timeout_s", 0.0),
        ("store_fetch_timeout_s", float("nan")),
        ("store_lease_ttl_s", -1.0),
        ("store_ttl_s", -1.0),
        ("store_connections", 0),
        ("redis_cert_file", "cert.pem"),
        ("store_compression", "zip"),
    ],
)
def test_a_bad_setting_names_itself(field, value):
    with pytest.raises(ValueError, match=field):
        StoreConfig(**{field: value})
