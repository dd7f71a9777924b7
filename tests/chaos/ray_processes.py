"""Ray's own processes: a worker node started by its command, and a head that is started again.

Both are plain commands. Ray's Python calls fork this process, which by then has gRPC's threads, and
a forked child was seen to crash before it had become anything.
"""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

_END_TIMEOUT_S = 20.0


class WorkerNode:
    """One `ray start --block`, and what it starts. wrap: what runs it on another host."""

    def __init__(self, gcs_address: str, node_address: str, *, wrap: list[str], num_cpus: int):
        self._process = subprocess.Popen(
            [
                *wrap,
                *(str(Path(sys.executable).with_name("ray")), "start", "--block"),
                *("--address", gcs_address, "--node-ip-address", node_address),
                *("--num-cpus", str(num_cpus), "--object-store-memory", str(80 * 1024 * 1024)),
                *("--min-worker-port", "0", "--max-worker-port", "0"),
                *("--dashboard-agent-listen-port", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """End it and everything below it, as when the machine loses its power."""
        processes: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            processes = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=_END_TIMEOUT_S)
        self._process.wait()


class HeadProcess:
    """The cluster's GCS, which can be killed and started again as it was."""

    def __init__(self) -> None:
        self._process = self._find()
        self._command = self._process.cmdline()
        self._environment: Mapping[str, str] = self._process.environ()
        self._again: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """As by the kernel's out-of-memory killer."""
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)

    def start(self) -> None:
        """The same command with the same storage."""
        self._again = subprocess.Popen(
            self._command,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._process = psutil.Process(self._again.pid)

    def end(self) -> None:
        """Only what was started here; the first one is the cluster's own."""
        if self._again is not None and self._again.poll() is None:
            self._again.kill()
            self._again.wait()

    @staticmethod
    def _find() -> psutil.Process:
        return next(
            process
            for process in psutil.Process().children(recursive=True)
            if "gcs_server" in Path(next(iter(process.cmdline()), "")).name
        )
