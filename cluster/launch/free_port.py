"""Finds TCP ports that nobody uses, so that two services fit on one machine."""

import socket


def free_port() -> int:
    """A loopback port that is free at this moment; whoever takes it soon is likely to get it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
