"""The run folder is private and short, and so is the token in it."""

import stat
import tempfile

from cluster.launch.run_folder import make_ray_token, make_run_folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_owner_can_enter_the_folder_or_read_the_token():
    folder = make_run_folder()
    make_ray_token(folder)
    assert mode(folder) == 0o700
    assert mode(folder / "ray-token") == 0o600
    (folder / "ray-token").unlink()
    folder.rmdir()


def test_a_long_temporary_folder_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 12)))
    folder = make_run_folder()
    assert len(str(folder)) <= 40
    folder.rmdir()


def test_two_runs_have_two_secrets(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("a", "b"):
        environment = make_ray_token(tmp_path / name)
        assert environment["RAY_AUTH_MODE"] == "token"
    assert (tmp_path / "a/ray-token").read_text() != (tmp_path / "b/ray-token").read_text()
