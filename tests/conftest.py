"""What every test may lean on: a free port, and the environment a user would have."""

import os
import socket
from collections.abc import Callable

import pytest

from cluster.config_loading import public_settings, variable

# Settings of the developer's own shell must not reach the code under test.
for name in ["PAGODA_CONFIG", *(variable(setting) for setting in public_settings())]:
    os.environ.pop(name, None)
# Tiny tensors on many threads, each spinning for the next one, take five times as long.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Gives a loopback port that nobody listens on at this moment."""

    def choose() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return choose
