"""The command line: what it prints, and that wrong use is one line and exit code 2."""

import socket
import subprocess
import sys

import pytest

from cluster import cli
from cluster.package_origin import ForeignPackage, check_package_origin


def pagoda(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "cluster.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **kwargs,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", "abc"], "--port='abc': expected a whole number"),
        (
            ["serve", "--max-num-sqs", "3"],
            "--max-num-sqs: no such argument; did you mean --max-num-seqs?",
        ),
        (
            ["serve", "--kernels=cuda"],
            "--kernels='cuda': expected auto or reference or cpu or triton",
        ),
        (["serve", "--config", "/nowhere.toml"], "--config /nowhere.toml: No such file"),
        (["serve", "--host", "not a host"], "host=not a host: no such address"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_taken_port_is_refused_at_once(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    assert f"port={port}: cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_version_is_that_of_the_distribution():
    assert pagoda("--version").stdout.startswith("pagoda 0.")


def test_help_names_settings_and_their_defaults():
    text = " ".join(pagoda("serve", "--help").stdout.split())
    assert "--max-num-batched-tokens N token budget of one step (Sarathi-Serve). [512]" in text


def test_a_command_is_required():
    assert pagoda().returncode == 2


def test_packages_of_this_house_are_accepted():
    check_package_origin()


def test_a_package_from_somewhere_else_is_refused(tmp_path):
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from cluster.cli import main
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert f"the package router would come from {tmp_path}" in ended.stderr


def test_a_missing_package_is_refused():
    with pytest.raises(ForeignPackage, match="no_such_package would come from nowhere"):
        check_package_origin(["no_such_package"])
