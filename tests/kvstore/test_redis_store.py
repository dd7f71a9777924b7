"""Connecting to a Redis or Valkey server: what it says of itself, and errors in plain words."""

import socket
import threading

import pytest
import redis

from cluster.launch.embedded_store import EmbeddedStore
from kvstore.errors import StoreUnavailable
from kvstore.redis_store import ServerInfo, server_info, without_secrets


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("valkey")
    with EmbeddedStore(memory_bytes=8 * 1024 * 1024, folder=folder) as store:
        store.start()
        yield store.url


def failure(url, *, timeout_s=1.0):
    with pytest.raises(StoreUnavailable) as caught:
        server_info(url, timeout_s=timeout_s)
    return str(caught.value)


@pytest.mark.redis
def test_a_server_tells_version_memory_and_policy(url):
    info = server_info(url, timeout_s=5.0)
    assert info.name == "Valkey"
    assert int(info.version.split(".")[0]) >= 8
    assert info.max_memory_bytes == 8 * 1024 * 1024


@pytest.mark.redis
def test_an_acl_user_enters_and_a_permission_that_is_lacking_is_named(url):
    client = redis.Redis.from_url(url)
    client.acl_setuser("engine", enabled=True, passwords=["+pw"], commands=["+@all"], keys=["*"])
    client.acl_setuser("narrow", enabled=True, passwords=["+pw"], commands=["+ping"])
    client.close()
    address = url.rpartition("@")[2]
    assert server_info(f"redis://engine:pw@{address}", timeout_s=5.0).name == "Valkey"
    assert "the user lacks a permission" in failure(f"redis://narrow:pw@{address}")


@pytest.mark.redis
def test_a_wrong_password_is_refused_in_words_and_not_repeated_in_them(url):
    message = failure(f"redis://:hunter2@{url.rpartition('@')[2]}")
    assert "refuses this user or password" in message
    assert "hunter2" not in message


@pytest.mark.redis
def test_tls_to_a_server_without_tls_fails_in_time(url):
    assert "rediss://127.0.0.1" in failure(f"rediss://{url.rpartition('@')[2]}", timeout_s=0.3)


def test_nobody_listening_is_said(free_port):
    assert "refused" in failure(f"redis://127.0.0.1:{free_port()}/0")


def test_a_missing_socket_file_is_said(tmp_path):
    assert "No such file" in failure(f"unix://{tmp_path}/none.sock")


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert failure(f"redis://127.0.0.1:{port}/0", timeout_s=0.2).endswith("no answer in time")


def test_a_server_that_speaks_something_else_is_recognised():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def speak_http():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        speaker = threading.Thread(target=speak_http)
        speaker.start()
        message = failure(f"redis://127.0.0.1:{port}/0")
        speaker.join()
    assert "does not speak the Redis protocol" in message


def test_an_unreadable_address_is_refused():
    assert "h:port" in failure("redis://h:port/0")


def test_an_address_in_a_log_shows_no_secret():
    assert without_secrets("rediss://user:pw@host:1/0?ssl_ca=x") == "rediss://host:1/0"
    assert without_secrets("unix://user:pw@/run/valkey.sock") == "unix:///run/valkey.sock"


def test_a_server_that_cannot_drop_old_blocks_is_warned_of():
    unbounded = ServerInfo("Redis", "7.0", max_memory_bytes=0, max_memory_policy="noeviction")
    stubborn = ServerInfo("Redis", "7.0", max_memory_bytes=1 << 30, max_memory_policy="noeviction")
    fit = ServerInfo("Redis", "7.0", max_memory_bytes=1 << 30, max_memory_policy="allkeys-lfu")
    assert "maxmemory is 0" in unbounded.warnings()[0]
    assert "noeviction" in stubborn.warnings()[0]
    assert fit.warnings() == ()
