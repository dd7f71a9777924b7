"""How much memory this machine, or this container, has and could give now."""

import os
from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes: what this process may use at most, and what can be had now without swapping."""

    total_bytes: int
    available_bytes: int


def host_memory(meminfo: Path = _MEMINFO, limit_file: Path = _CGROUP_LIMIT) -> HostMemory:
    """Read from the system at every call."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    total_bytes = page_bytes * os.sysconf("SC_PHYS_PAGES")
    return HostMemory(
        total_bytes=min(total_bytes, _limit_bytes(limit_file) or total_bytes),
        available_bytes=_available_bytes(meminfo) or page_bytes * os.sysconf("SC_AVPHYS_PAGES"),
    )


def _available_bytes(meminfo: Path) -> int | None:
    for line in _read(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _limit_bytes(limit_file: Path) -> int | None:
    """The container's limit; None without one (the file then says "max")."""
    limit = _read(limit_file).strip()
    return int(limit) if limit.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        # Not Linux, or no control groups: the callers have another source.
        return ""
