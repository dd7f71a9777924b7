"""Starts a program with all that it may start itself, and leaves none of it behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster.bench.peers.environments import plain_environment
from cluster.bench.peers.process_table import family_pids

_LAST_LINES = 12
_PAUSE_S = 0.05


class ProgramEnded(RuntimeError):
    """A program ended too early, or did not come to its end in time."""


class Program:
    """A running program that writes what it prints into `log`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    def check(self, deadline: float) -> None:
        """Raises ProgramEnded if it ended, or if `deadline`, in monotonic seconds, has passed."""
        code = self._process.poll()
        if code is not None:
            raise ProgramEnded(f"ended with status {code}: {self._last_words()}")
        if time.monotonic() > deadline:
            raise ProgramEnded(f"took too long: {self._last_words()}")

    def close_input(self) -> None:
        """Let it know that nothing more is coming."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def wait(self, *, timeout_s: float) -> bool:
        """Whether it ended within this time."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines[-_LAST_LINES:] if line.strip()]
        return f"{' / '.join(said[-3:])} (all of it: {self._log})"


@contextlib.contextmanager
def started(
    arguments: Sequence[str], variables: Mapping[str, str], *, log: Path
) -> Iterator[Program]:
    """A program that runs until the block is left, in a session of its own.

    This process must have adopted orphans (cluster.launch.process_ties), so that whoever lost its
    parent is found as well.
    """
    before = set(family_pids(os.getpid()))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env={**plain_environment(os.environ), **variables},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Program(process, log)
    finally:
        _end_all_but(before)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()


def _end_all_but(kept: set[int]) -> None:
    while left := [pid for pid in family_pids(os.getpid()) if pid not in kept]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Adopted ones have nobody else to reap them; the others are not ours to wait for.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_S)
