"""Watches a turn from the side: how much CPU others took from it, how much memory it held."""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence

from cluster.bench.peers.process_table import Usage, family_pids, proportional_bytes, read_usage

_EVERY_S = 1.0


class FamilyWatch:
    """Reads once a second, in a thread, what this process and all its descendants use.

    pid: of the descendant whose memory counts, with its own descendants.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[Usage] = []
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="family-watch", daemon=True)

    def __enter__(self) -> "FamilyWatch":
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def foreign_cores(self, began_at: float, ended_at: float) -> float:
        """Cores that others used between two moments that have passed."""
        self._sample()
        return foreign_cores(self._samples, began_at, ended_at)

    def memory(self) -> dict[str, float]:
        """Most bytes held so far, by the processes that still live and those that ended.

        peak_bytes: with pages that they share counted once, as far as the kernel tells how many
        these are now; it takes long to tell, so ask when nothing is being timed.
        """
        proportional = proportional_bytes(family_pids(self._pid))
        self._sample()
        peak = max(one.resident_bytes for one in self._samples)
        shared = 0
        if proportional is not None:
            shared = max(0, self._samples[-1].resident_bytes - proportional)
        return {"peak_bytes": peak - shared, "peak_resident_bytes": peak, "shared_bytes": shared}

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            self._samples.append(read_usage(os.getpid(), self._pid, at=time.monotonic()))


def foreign_cores(samples: Sequence[Usage], began_at: float, ended_at: float) -> float:
    """Mean cores in use by none of the family; use between two samples is taken as even."""
    before, after = _at(samples, began_at), _at(samples, ended_at)
    others_s = (after[0] - before[0]) - (after[1] - before[1])
    return max(0.0, others_s / max(1e-9, ended_at - began_at))


def _at(samples: Sequence[Usage], moment: float) -> tuple[float, float]:
    """busy_s and family_s at a moment."""
    index = bisect_left([one.at for one in samples], moment)
    later = samples[min(index, len(samples) - 1)]
    sooner = samples[max(0, index - 1)]
    width_s = later.at - sooner.at
    share = min(1.0, max(0.0, (moment - sooner.at) / width_s)) if width_s > 0 else 0.0
    return (
        sooner.busy_s + share * (later.busy_s - sooner.busy_s),
        sooner.family_s + share * (later.family_s - sooner.family_s),
    )
