"""One running service for all end-to-end tests: started by the command, stopped as by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
# Little memory for K and V: a test machine has other things to hold.
SMALL = ("--kv-cache-memory-bytes", "256MiB", "--store-memory-bytes", "64MiB")


@dataclass(frozen=True, slots=True)
class Service:
    """A `pagoda serve` that answers; `log` is the file of everything it printed."""

    base_url: str
    process: subprocess.Popen[bytes]
    log: Path

    def family(self) -> list[psutil.Process]:
        """The command's process and everything below it."""
        command = psutil.Process(self.process.pid)
        return [command, *command.children(recursive=True)]


def _start(*arguments: str, port: int, log: Path) -> Service:
    """Start the command in a process group of its own; returns once /health answers 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", "serve", "--port", str(port), *SMALL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    service = Service(f"http://127.0.0.1:{port}", process, log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while "Pagoda serves" not in log.read_text() or not answers(service):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"pagoda serve did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.2)
    return service


def answers(service: Service) -> bool:
    """Whether /health is 200 now."""
    try:
        with urllib.request.urlopen(f"{service.base_url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _stop(service: Service, wish: signal.Signals = signal.SIGINT) -> None:
    """Signal the whole process group; no process of the family may be left within a minute."""
    family = service.family()
    os.killpg(service.process.pid, wish)
    _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
    assert alive == [], f"left over: {alive}"
    assert service.process.wait(timeout=1.0) == 0


@pytest.fixture(scope="session")
def service(free_port, tmp_path_factory) -> Iterator[Service]:
    """The demo model, served with defaults; stopped after the last test of the session."""
    log = tmp_path_factory.mktemp("service") / "serve.log"
    running = _start(port=free_port(), log=log)
    yield running
    _stop(running)


@pytest.fixture(scope="session")
def base_url(service: Service) -> str:
    """Where the service answers, without a trailing slash: http://127.0.0.1:8123."""
    return service.base_url


@pytest.fixture(scope="session")
def start_service() -> Callable[..., Service]:
    """Starts another service: start_service("--api-key", "k", port=p, log=file)."""
    return _start


@pytest.fixture(scope="session")
def stop_service() -> Callable[..., None]:
    """Stops one, by SIGINT or another signal to its group, and checks that nothing is left."""
    return _stop
