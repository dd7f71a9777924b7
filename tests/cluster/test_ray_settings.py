"""What Ray is told before it starts, and the secret that follows from its token."""

import os
import subprocess
from pathlib import Path

import pytest
import ray
from ray._raylet import AuthenticationTokenLoader

from cluster.cluster_secret import NoClusterSecret, cluster_secret
from cluster.launch import haproxy_process
from cluster.ray_settings import RAY_SETTINGS, haproxy_environment, ray_environment


def test_every_setting_says_why_and_stands_once():
    assert all(setting.reason for setting in RAY_SETTINGS)
    assert len(ray_environment()) == len(RAY_SETTINGS)


def test_the_pinned_ray_still_reads_every_serve_setting():
    serve = Path(ray.__file__).parent / "serve/_private"
    source = "".join((serve / name).read_text() for name in ("constants.py", "proxy.py"))
    files = haproxy_environment(Path("/folder"), free_port=lambda: 1)
    names = [name for name in {**ray_environment(), **files} if "SERVE_" in name]
    assert len(names) > 10
    assert [name for name in names if f'"{name}"' not in source] == []


def test_haproxy_files_all_lie_in_the_private_folder(tmp_path: Path):
    files = haproxy_environment(tmp_path, free_port=lambda: 1)
    paths = [value for name, value in files.items() if not name.endswith(("_PORT", "_BINARY_PATH"))]
    assert len(paths) == 5
    assert all(value.startswith(str(tmp_path)) for value in paths)


def test_haproxy_is_the_one_that_came_with_ray_though_serve_is_told_of_another():
    command = str(haproxy_process.haproxy_command())
    environ = {**os.environ, haproxy_process.VARIABLE: command}
    said = subprocess.run([command, "-v"], env=environ, capture_output=True, text=True, timeout=30)
    assert said.stdout.startswith("HAProxy version 2.8."), said


@pytest.fixture
def ray_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes Ray find that token, or none."""

    def give(token: str) -> None:
        path = tmp_path / "token"
        path.write_text(token)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        AuthenticationTokenLoader.instance().reset_cache()

    yield give
    AuthenticationTokenLoader.instance().reset_cache()


def test_a_given_secret_is_taken():
    given = {"PAGODA_CLUSTER_SECRET": "sixteen letters!"}
    assert cluster_secret(given) == "sixteen letters!"


def test_a_short_secret_is_turned_down_without_being_shown():
    with pytest.raises(NoClusterSecret, match="at least 16") as error:
        cluster_secret({"PAGODA_CLUSTER_SECRET": "hunter2"})
    assert "hunter2" not in str(error.value)


def test_without_one_the_secret_follows_from_the_token_and_does_not_contain_it(ray_token):
    ray_token("a" * 64)
    first = cluster_secret({})
    assert first == cluster_secret({})
    assert "aaaa" not in first
    assert len(first) == 64
    ray_token("b" * 64)
    assert cluster_secret({}) != first
