"""Describes the machine and the moment of a measurement, so that its figures can be judged."""

import os
import platform
import subprocess
import time
from pathlib import Path


def describe_machine(command: str) -> dict[str, object]:
    """Plain values. command: that repeats the measurement."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": command,
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Of the sources that run, with a mark if they were changed since; "unknown" outside of git."""
    place = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
