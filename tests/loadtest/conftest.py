"""Gives the load-test tests a mock server in a process of its own and a way to drive it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
StartMock = Callable[..., str]


@pytest.fixture
def start_mock() -> Iterator[StartMock]:
    """`start_mock(ttft_s=0.1, ...)` starts a mock server and returns its base URL."""
    processes: list[subprocess.Popen[str]] = []

    def start(**profile: Any) -> str:
        options = [_option(name.replace("_", "-"), value) for name, value in profile.items()]
        process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.mock_server", "--port=0", *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1]

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=10)
        assert process.stdout is not None
        process.stdout.close()


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real traces; the test is skipped where it is absent."""
    named = os.environ.get("PAGODA_SHARED_DIR")
    folder = Path(named) if named else PROJECT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real traces: {folder} is absent (set PAGODA_SHARED_DIR)")
    return folder
