"""Runs the service in a child process and sees to it that nothing of it is left at the end.

The child has a session of its own, so Ctrl-C in a terminal reaches only the supervisor, which asks
the child to stop in order: Ray and Serve come apart badly when every one of their processes is
interrupted at once. The supervisor adopts every orphan of the family (Linux), so whatever the child
leaves behind, or drops by being killed, is found and ended. As the first process of a container it
also reaps what nobody waits for.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import psutil

from cluster.launch import process_ties

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# make repeats the group's SIGTERM to its child, and some terminals repeat a key.
_SAME_WISH_S = 0.5


class Supervisor:
    """One child, from its fork to the end of its last descendant.

    stop_timeout_s: longest wait for the child to stop in order before everything is killed.
    """

    def __init__(
        self, *, stop_timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._clock = clock
        self._child_pid = 0
        self._exit_code: int | None = None
        self._stopping_since: float | None = None

    def run(self, serve: Callable[[], int]) -> int:
        """Call `serve` in a child and return its exit code once no descendant is left.

        Call it before the process has threads: the child goes on from this very point.
        """
        process_ties.adopt_orphans()
        watched: set[signal.Signals] = {*_STOP_SIGNALS, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        supervisor_pid = os.getpid()
        self._child_pid = os.fork()
        if self._child_pid == 0:
            _become_child(supervisor_pid, before, serve)
        try:
            self._wait_for_child(watched)
        finally:
            self._end_leftovers()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._exit_code is not None
        return self._exit_code

    def _wait_for_child(self, watched: set[signal.Signals]) -> None:
        while self._exit_code is None:
            arrived = signal.sigtimedwait(watched, 0.5)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                self._heed(signal.Signals(arrived.si_signo))
            self._reap()
            if self._is_overdue():
                log.warning("stop overdue after_s=%.0f", self._stop_timeout_s)
                self._kill_all()

    def _heed(self, wish: signal.Signals) -> None:
        now = self._clock()
        if self._stopping_since is None:
            self._stopping_since = now
            log.info("stopping signal=%s (Ctrl-C again to force)", wish.name)
            os.kill(self._child_pid, signal.SIGTERM)
        elif wish is signal.SIGINT and now - self._stopping_since > _SAME_WISH_S:
            log.warning("stop forced")
            self._kill_all()

    def _is_overdue(self) -> bool:
        since = self._stopping_since
        return since is not None and self._clock() - since > self._stop_timeout_s

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child_pid:
                code = os.waitstatus_to_exitcode(status)
                if code < 0 and self._stopping_since is None:
                    log.error("service killed signal=%s", signal.Signals(-code).name)
                self._exit_code = code if code >= 0 else 128 - code

    def _kill_all(self) -> None:
        for process in psutil.Process().children(recursive=True):
            _send(process, signal.SIGKILL)

    def _end_leftovers(self) -> None:
        """Two seconds to end for whoever is left, then no more asking."""
        deadline = self._clock() + 2.0
        asked: set[int] = set()
        while left := psutil.Process().children(recursive=True):
            is_late = self._clock() > deadline
            for process in left:
                if is_late or process.pid not in asked:
                    _send(process, signal.SIGKILL if is_late else signal.SIGTERM)
                    asked.add(process.pid)
            self._reap()
            time.sleep(0.02)
        if asked:
            log.info("leftover processes ended num=%d", len(asked))


def _become_child(
    supervisor_pid: int, signals_before: set[int | signal.Signals], serve: Callable[[], int]
) -> None:
    os.setsid()
    process_ties.die_with_parent(supervisor_pid, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, signals_before)
    sys.exit(serve())


def _send(process: psutil.Process, what: signal.Signals) -> None:
    try:
        process.send_signal(what)
    except psutil.NoSuchProcess:
        log.debug("already gone pid=%d", process.pid)
