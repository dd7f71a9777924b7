"""Ties the life of one process to another's, so that no service outlives its starter.

Run as a program it ties itself to its parent and then becomes another program:
`python -I -S process_ties.py PROGRAM ARGUMENT...`. That way a process with many threads can tie its
children without running Python between fork and exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int, how: int = signal.SIGKILL) -> None:
    """Have the kernel send us `how` when the thread that started us ends.

    `parent_pid` is who that was: a parent that has ended already is noticed too. Linux only;
    elsewhere this does nothing, and a killed parent leaves its children behind.
    """
    _prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), how)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that they can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def tied_command(command: list[str]) -> list[str]:
    """The command that runs `command` and is killed when the thread that started it ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl option={option}")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
